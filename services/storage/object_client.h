// ObjectClient: requests to an object store that speaks S3, tried again where
// that can help. Errors: those of storage.h.

#ifndef SERVICES_STORAGE_OBJECT_CLIENT_H_
#define SERVICES_STORAGE_OBJECT_CLIENT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "services/http/http_client.h"
#include "services/storage/credentials.h"
#include "services/storage/object_path.h"

namespace gshard {

struct ObjectStoreOptions {
  // "https://host[:port]", to which /bucket/key is added. Empty:
  // AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL, or Amazon's of the region.
  std::string endpoint = {};
  // Empty: AWS_REGION or AWS_DEFAULT_REGION, or us-east-1.
  std::string region = {};
  // http:// is allowed to endpoints that are not this machine.
  bool insecure = false;

  // A request is sent at most `attempts` times, the second after about
  // `first_delay`, each further one after twice as long, up to `max_delay`.
  int attempts = 8;
  absl::Duration first_delay = absl::Milliseconds(100);
  absl::Duration max_delay = absl::Seconds(5);
};

struct ObjectInfo {
  uint64_t bytes = 0;
  std::string etag;     // changes with the object; opaque
  absl::Time modified;  // by the clock of the store, to the second
  absl::Time now;       // likewise
};

// What has to be so for an object to be written.
struct PutCondition {
  enum class Kind { kNone, kAbsent, kMatches };
  Kind kind = Kind::kNone;
  std::string etag = {};  // of the object that is replaced, for kMatches
};

struct ObjectList {
  std::vector<std::string> keys;
  std::vector<std::string> prefixes;  // with their slash
};

// Thread-safe.
class ObjectClient {
 public:
  // Errors: FailedPrecondition for an endpoint that is no URL, or http:// and
  // not allowed.
  static absl::StatusOr<std::unique_ptr<ObjectClient>> Create(
      const ObjectStoreOptions& options,
      Environment environment = ProcessEnvironment);

  absl::StatusOr<ObjectInfo> Head(const ObjectPath& path);

  // Fills `target` from `offset` on. Errors: also FailedPrecondition if `etag`
  // is not empty and not the object's; DataLoss if the object ends before.
  absl::Status Get(const ObjectPath& path, uint64_t offset,
                   const std::string& etag, absl::Span<char> target);

  // The object's new tag. `bytes` may be empty. If a conditional write is
  // refused because an earlier attempt at it succeeded unheard, it is done.
  absl::StatusOr<std::string> Put(const ObjectPath& path,
                                  absl::string_view bytes,
                                  const PutCondition& condition = {});

  // OK if it is not there.
  absl::Status Delete(const ObjectPath& path);

  // Objects of `bucket` whose keys begin with `prefix`, in order of key; with a
  // `delimiter` of "/" those with another slash behind it are one prefix.
  // Errors: also ResourceExhausted for more than a million.
  absl::StatusOr<ObjectList> List(const std::string& bucket,
                                  const std::string& prefix,
                                  absl::string_view delimiter);

  // An upload in parts, each of which but the last has at least 5 MiB. The
  // object is there once it is completed.
  absl::StatusOr<std::string> BeginUpload(const ObjectPath& path);
  absl::StatusOr<std::string> PutPart(const ObjectPath& path,
                                      const std::string& upload, int number,
                                      absl::string_view bytes);
  // `etags` of the parts, in order. REQUIRES: nobody else writes an object of
  // this name.
  absl::Status CompleteUpload(const ObjectPath& path, const std::string& upload,
                              absl::Span<const std::string> etags,
                              uint64_t bytes);
  absl::Status AbortUpload(const ObjectPath& path, const std::string& upload);

 private:
  ObjectClient(ObjectStoreOptions options, std::string sts_endpoint,
               Environment environment)
      : options_(std::move(options)),
        credentials_(std::move(sts_endpoint), &http_, std::move(environment)) {}

  // The URL of an object, or of a bucket, with a query that begins with '?'.
  std::string Url(const std::string& bucket, absl::string_view key,
                  absl::string_view query) const;
  // Sends the request until it succeeds, cannot or has been sent too often.
  // `what` is for errors: "read s3://...". With `sent` it says how often.
  absl::StatusOr<HttpResponse> Send(const std::string& what,
                                    HttpRequest request, int* sent = nullptr);

  const ObjectStoreOptions options_;  // complete
  HttpClient http_;
  CredentialSource credentials_;
};

// How long to wait before attempt `attempt` (1: the second), between half and
// all of what doubling gives; `random` in [0, 1).
absl::Duration DelayBefore(int attempt, const ObjectStoreOptions& options,
                           double random);

// The client of the process, which `options` replace from now on; by default
// they are those of the environment.
void ConfigureObjectStore(const ObjectStoreOptions& options);
absl::StatusOr<std::shared_ptr<ObjectClient>> ProcessObjectClient();

}  // namespace gshard

#endif  // SERVICES_STORAGE_OBJECT_CLIENT_H_
