// Security: a process's network security, built from its options and kept up to
// date with the files that they name: TLS for its server and its calls,
// authentication of callers, and the token of its own calls.
//
//   ASSIGN_OR_RETURN(auto security,
//                    Security::CreateForServer(options, listen));
//   server.UseSecurity(security);
//   CreateChannel(address, {.security = security});
//
// Files may be replaced while the process runs, best by renaming new ones over
// them, key and certificate at the same time. Within some seconds new
// connections and calls use the new files; open ones continue. An invalid new
// file is logged, and the previous contents stay in force. But gRPC itself
// reads certificates and keys, so new connections may fail until an invalid one
// is repaired.

#ifndef SERVICES_RPC_SECURITY_SECURITY_H_
#define SERVICES_RPC_SECURITY_SECURITY_H_

#include <grpcpp/security/tls_certificate_provider.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "services/base/mutex.h"
#include "services/config/security_options.h"
#include "services/metrics/metrics.h"
#include "services/rpc/security/auth_table.h"

namespace gshard {

// Certificates that expire within this time cause a warning, once an hour.
inline constexpr absl::Duration kExpiryWarning = absl::Hours(7 * 24);

// Thread-safe.
class Security {
 public:
  // Reads all files.
  //
  // Errors: those of ValidateServerSecurity and CertificateExpiry;
  // InvalidArgument if a key does not match its certificate; those of
  // AuthTable::Parse, with the path; NotFound.
  static absl::StatusOr<std::shared_ptr<Security>> CreateForServer(
      const SecurityOptions& options, const std::string& listen);
  // For a process that is only a client.
  static absl::StatusOr<std::shared_ptr<Security>> CreateForClient(
      const SecurityOptions& options);

  ~Security();

  Security(const Security&) = delete;
  Security& operator=(const Security&) = delete;

  const SecurityOptions& options() const { return options_; }

  // Null without TLS.
  std::shared_ptr<grpc::experimental::CertificateProviderInterface> provider()
      const {
    return provider_;
  }

  // The caller with these credentials; see AuthTable::Identify. Without
  // --auth_file every caller has all roles.
  absl::StatusOr<Caller> Identify(const Credentials& credentials) const;

  // The value of "authorization" for outgoing calls; empty for none.
  std::string authorization() const;

  // Adds gshard_tls_certificate_remaining_seconds if there is a certificate.
  // `metrics` must not outlive this object.
  void AddMetrics(Metrics& metrics) const;

  // Reads the files that have changed, and those that are not used yet. This
  // also happens automatically every second.
  void Reload();

 private:
  // A file that is read again when it changes, or its key does.
  struct WatchedFile {
    std::string Stamp() const;

    std::string path;
    std::string key_path;  // of a certificate; else empty
    std::function<absl::Status(const std::string& path)> read;
    std::string stamp = {};    // from before the contents were read
    absl::Status failed = {};  // why they are not used
  };

  explicit Security(const SecurityOptions& options) : options_(options) {}

  absl::Status Start();
  absl::Status ReadAuthFile(const std::string& path);
  absl::Status ReadTokenFile(const std::string& path);
  absl::Status ReadCertificate(const std::string& path);
  void WarnOfExpiry() ABSL_EXCLUSIVE_LOCKS_REQUIRED(reload_mutex_);
  void Watch();

  const SecurityOptions options_;
  std::shared_ptr<grpc::experimental::CertificateProviderInterface> provider_;

  Mutex reload_mutex_;  // one Reload() at a time
  std::vector<WatchedFile> files_ ABSL_GUARDED_BY(reload_mutex_);
  absl::Time warned_ ABSL_GUARDED_BY(reload_mutex_) = absl::InfinitePast();

  // Calls only read, so they do not block each other.
  mutable SharedMutex mutex_;
  std::shared_ptr<const AuthTable> table_ ABSL_GUARDED_BY(mutex_);
  std::string authorization_ ABSL_GUARDED_BY(mutex_);
  absl::Time expiry_ ABSL_GUARDED_BY(mutex_);

  Mutex stop_mutex_;
  CondVar stopped_;
  bool stopping_ ABSL_GUARDED_BY(stop_mutex_) = false;
  std::thread thread_;
};

}  // namespace gshard

#endif  // SERVICES_RPC_SECURITY_SECURITY_H_
