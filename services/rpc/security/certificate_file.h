// Certificates and keys in PEM files: finds defects with a clear error, before
// gRPC fails handshakes without one.

#ifndef SERVICES_RPC_SECURITY_CERTIFICATE_FILE_H_
#define SERVICES_RPC_SECURITY_CERTIFICATE_FILE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace gshard {

// When the first certificate in the file expires.
//
// Errors: NotFound and the like if the file cannot be read; InvalidArgument if
// it is none, or holds none.
absl::StatusOr<absl::Time> CertificateExpiry(const std::string& path);

// Whether the key in `key_path` is that of the first certificate in
// `certificate_path`. Errors: as above, and InvalidArgument if it is not.
// Neither cites the key.
absl::Status CheckKeyPair(const std::string& certificate_path,
                          const std::string& key_path);

// Logs it if others than the owner and its group can read the file: a secret is
// in it.
void WarnIfReadableByOthers(const std::string& path);

}  // namespace gshard

#endif  // SERVICES_RPC_SECURITY_CERTIFICATE_FILE_H_
