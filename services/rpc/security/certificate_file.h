// Checks of certificates and keys in PEM files: reports defects with a clear
// error, before gRPC's handshakes fail without one.

#ifndef SERVICES_RPC_SECURITY_CERTIFICATE_FILE_H_
#define SERVICES_RPC_SECURITY_CERTIFICATE_FILE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace gshard {

// The expiry time of the first certificate in the file.
//
// Errors: NotFound and the like if the file cannot be read; InvalidArgument if
// it is not a PEM file or has no valid certificate.
absl::StatusOr<absl::Time> CertificateExpiry(const std::string& path);

// Checks that the key in `key_path` belongs to the first certificate in
// `certificate_path`. Errors: as above, and InvalidArgument if it does not.
// Messages never quote the key.
absl::Status CheckKeyPair(const std::string& certificate_path,
                          const std::string& key_path);

// Checks that an authority in `authority_path` vouches for the first
// certificate in `certificate_path` at present, perhaps by others in that file.
// Errors: as above, and FailedPrecondition, saying why not, such as that it has
// expired.
absl::Status CheckTrusted(const std::string& certificate_path,
                          const std::string& authority_path);

// Logs a warning if users other than the owner and its group can read the file,
// which contains a secret.
void WarnIfReadableByOthers(const std::string& path);

}  // namespace gshard

#endif  // SERVICES_RPC_SECURITY_CERTIFICATE_FILE_H_
