// ObjectClient: requests to an S3-compatible object store, with retries.
// Errors: those of storage.h.

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
  // "https://host[:port]", to which /bucket/key is appended. Empty:
  // AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL, or Amazon's endpoint of the
  // region.
  std::string endpoint = {};
  // Empty: AWS_REGION or AWS_DEFAULT_REGION, or us-east-1.
  std::string region = {};
  // Allows http:// to endpoints other than loopback.
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

// The condition for writing an object.
struct PutCondition {
  enum class Kind { kNone, kAbsent, kMatches };
  Kind kind = Kind::kNone;
  std::string etag = {};  // tag of the object to replace, for kMatches
};

struct ObjectList {
  std::vector<std::string> keys;
  std::vector<std::string> prefixes;  // with their slash
};

// Thread-safe. A `timeout` is that of each attempt, and also ends one that
// makes progress; zero: none.
class ObjectClient {
 public:
  // Errors: FailedPrecondition for an endpoint that is not a URL, or http://
  // where not allowed.
  static absl::StatusOr<std::unique_ptr<ObjectClient>> Create(
      const ObjectStoreOptions& options,
      Environment environment = ProcessEnvironment);

  absl::StatusOr<ObjectInfo> Head(
      const ObjectPath& path, absl::Duration timeout = absl::ZeroDuration());

  // Fills `target` from `offset` on. Errors: also FailedPrecondition if `etag`
  // is not empty and differs from the object's; DataLoss if the object is
  // shorter.
  absl::Status Get(const ObjectPath& path, uint64_t offset,
                   const std::string& etag, absl::Span<char> target,
                   absl::Duration timeout = absl::ZeroDuration());

  // Returns the object's new tag. `bytes` may be empty. A conditional write
  // that is refused because an earlier attempt succeeded, with a lost response,
  // counts as done.
  absl::StatusOr<std::string> Put(
      const ObjectPath& path, absl::string_view bytes,
      const PutCondition& condition = {},
      absl::Duration timeout = absl::ZeroDuration());

  // OK if it does not exist.
  absl::Status Delete(const ObjectPath& path);

  // Objects of `bucket` whose keys begin with `prefix`, in order of key; with a
  // `delimiter` of "/", keys with another slash after it are merged into one
  // prefix. Errors: also ResourceExhausted for more than a million.
  absl::StatusOr<ObjectList> List(const std::string& bucket,
                                  const std::string& prefix,
                                  absl::string_view delimiter);

  // A multipart upload, in which each part but the last has at least 5 MiB. The
  // object appears once the upload is completed.
  absl::StatusOr<std::string> BeginUpload(const ObjectPath& path);
  absl::StatusOr<std::string> PutPart(const ObjectPath& path,
                                      const std::string& upload, int number,
                                      absl::string_view bytes);
  // `etags` of the parts, in order. REQUIRES: nobody else writes an object of
  // this name.
  absl::Status CompleteUpload(const ObjectPath& path, const std::string& upload,
                              absl::Span<const std::string> etags,
                              uint64_t bytes);
  // OK if it does not exist.
  absl::Status AbortUpload(const ObjectPath& path, const std::string& upload);

 private:
  ObjectClient(ObjectStoreOptions options, std::string sts_endpoint,
               Environment environment)
      : options_(std::move(options)),
        credentials_(std::move(sts_endpoint), &http_, std::move(environment)) {}

  // The URL of an object, or of a bucket, with a query that begins with '?'.
  std::string Url(const std::string& bucket, absl::string_view key,
                  absl::string_view query) const;
  // Sends the request until it succeeds, fails permanently or runs out of
  // attempts. `what` is for errors: "read s3://...". Sets `sent`, if given, to
  // the number of attempts.
  absl::StatusOr<HttpResponse> Send(const std::string& what,
                                    HttpRequest request, int* sent = nullptr);

  const ObjectStoreOptions options_;  // complete
  HttpClient http_;
  CredentialSource credentials_;
};

// The pause before attempt `attempt` (1: the second), between half and all of
// the exponential backoff; `random` in [0, 1).
absl::Duration DelayBefore(int attempt, const ObjectStoreOptions& options,
                           double random);

// Configures the process's client; by default it uses the environment.
void ConfigureObjectStore(const ObjectStoreOptions& options);
absl::StatusOr<std::shared_ptr<ObjectClient>> ProcessObjectClient();

}  // namespace gshard

#endif  // SERVICES_STORAGE_OBJECT_CLIENT_H_
