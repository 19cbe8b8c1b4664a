// CredentialSource: who this process is to an object store, found as AWS's own
// programs do:
//
//   AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN
//   AWS_WEB_IDENTITY_TOKEN_FILE, AWS_ROLE_ARN, AWS_ROLE_SESSION_NAME: exchanged
//     for keys by AssumeRoleWithWebIdentity, and again before they expire
//   AWS_SHARED_CREDENTIALS_FILE, or ~/.aws/credentials: the section
//   AWS_PROFILE,
//     or "default"; read again every minute
//
// Nothing of them is ever in a log or an error.

#ifndef SERVICES_STORAGE_CREDENTIALS_H_
#define SERVICES_STORAGE_CREDENTIALS_H_

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "services/base/mutex.h"
#include "services/http/http_client.h"

namespace gshard {

// The value of a variable of the environment; empty if there is none.
using Environment = std::function<std::string(const char* name)>;
std::string ProcessEnvironment(const char* name);

// Of a section of a shared credentials file. Errors: NotFound if it has no such
// section, or not both keys in it.
absl::StatusOr<StoreCredentials> ParseCredentialsFile(
    absl::string_view text, absl::string_view profile);

// From the answer to AssumeRoleWithWebIdentity. Errors: DataLoss.
absl::StatusOr<StoreCredentials> ParseAssumedRole(absl::string_view xml);

// Thread-safe.
class CredentialSource {
 public:
  // `sts_endpoint` is asked for roles; `http` outlives this.
  CredentialSource(std::string sts_endpoint, HttpClient* http,
                   Environment environment = ProcessEnvironment);

  // Errors: PermissionDenied, saying where was looked, or for keys that no
  // header may have; Unavailable if a role could not be assumed.
  absl::StatusOr<StoreCredentials> Get();

  // A store has refused those that Get() gave: they are found anew.
  void Forget();

 private:
  absl::StatusOr<StoreCredentials> Find() const;
  absl::StatusOr<StoreCredentials> AssumeRole(
      const std::string& token_file) const;

  const std::string sts_endpoint_;
  HttpClient& http_;
  const Environment environment_;
  Mutex mutex_;
  StoreCredentials found_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gshard

#endif  // SERVICES_STORAGE_CREDENTIALS_H_
