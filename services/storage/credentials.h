// CredentialSource: the process's credentials for an object store, found like
// AWS's own programs do:
//
//   AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN
//   AWS_WEB_IDENTITY_TOKEN_FILE, AWS_ROLE_ARN, AWS_ROLE_SESSION_NAME: exchanged
//     for keys by AssumeRoleWithWebIdentity, and again before they expire:
//     while that fails and they are good, every half minute, for 5 s each
//   AWS_SHARED_CREDENTIALS_FILE, or ~/.aws/credentials: the section
//   AWS_PROFILE,
//     or "default"; read again every minute
//
// They never appear in logs or errors.

#ifndef SERVICES_STORAGE_CREDENTIALS_H_
#define SERVICES_STORAGE_CREDENTIALS_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "services/base/mutex.h"
#include "services/http/http_client.h"

namespace gshard {

// The value of an environment variable; empty if unset.
using Environment = std::function<std::string(const char* name)>;
std::string ProcessEnvironment(const char* name);

// Parses a section of a shared credentials file. Errors: NotFound if the
// section, or one of its keys, is missing.
absl::StatusOr<StoreCredentials> ParseCredentialsFile(
    absl::string_view text, absl::string_view profile);

// Parses the response to AssumeRoleWithWebIdentity. Errors: DataLoss.
absl::StatusOr<StoreCredentials> ParseAssumedRole(absl::string_view xml);

// Thread-safe.
class CredentialSource {
 public:
  // Roles are assumed at `sts_endpoint`; `http` outlives this. `clock` tells
  // the time by which credentials expire.
  CredentialSource(std::string sts_endpoint, HttpClient* http,
                   Environment environment = ProcessEnvironment,
                   std::function<absl::Time()> clock = absl::Now);

  // One caller at a time looks for new credentials. Others wait for it only if
  // there are none that are good, and then share its error. Errors:
  // PermissionDenied, naming the places searched, or for keys that are invalid
  // in a header; Unavailable if a role could not be assumed now.
  absl::StatusOr<StoreCredentials> Get();

  // Drops the credentials after a store has refused them: Get() finds them
  // anew.
  void Forget();

 private:
  bool IsGood(const StoreCredentials& credentials, absl::Duration margin) const;
  // Without the mutex, since it may send requests and read files.
  absl::StatusOr<StoreCredentials> Find() const;
  absl::StatusOr<StoreCredentials> FindAnywhere() const;
  absl::StatusOr<StoreCredentials> AssumeRole(
      const std::string& token_file) const;

  const std::string sts_endpoint_;
  HttpClient& http_;
  const Environment environment_;
  const std::function<absl::Time()> clock_;
  Mutex mutex_;
  CondVar changed_;
  StoreCredentials found_ ABSL_GUARDED_BY(mutex_);
  bool finding_ ABSL_GUARDED_BY(mutex_) = false;  // a caller is in Find()
  int64_t finds_ ABSL_GUARDED_BY(mutex_) = 0;     // that are over
  absl::Status failed_ ABSL_GUARDED_BY(mutex_);   // the last of them, or OK
  absl::Time next_find_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
};

}  // namespace gshard

#endif  // SERVICES_STORAGE_CREDENTIALS_H_
