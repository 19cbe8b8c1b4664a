// Transport security and authentication: TLS, client certificates, tokens. The
// flags of servers and of clients, and the decisions that need no network.
//
// TLS is for TCP. Unix sockets are always plain: the permissions of their
// folders protect them.

#ifndef SERVICES_CONFIG_SECURITY_OPTIONS_H_
#define SERVICES_CONFIG_SECURITY_OPTIONS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "services/config/flags.h"

namespace gshard {

struct SecurityOptions {
  // PEM files, reloaded when they change. A certificate requires its key: a
  // server then serves TLS, a client presents them. With tls_ca the peer's
  // certificate must be signed by one of its authorities; a client then uses
  // TLS.
  std::string tls_certificate = {};
  std::string tls_key = {};
  std::string tls_ca = {};

  // Name expected in servers' certificates; empty: the host of their address.
  std::string tls_peer_name = {};

  // What a TLS server asks of its clients: "require" a certificate, "allow"
  // one, which must be valid if present, or "ignore" them.
  std::string tls_clients = "require";

  // Callers with their roles, see services/rpc/security/auth_table.h; empty:
  // every caller has all roles. Reloaded when it changes.
  std::string auth_file = {};

  // File of the token that this process sends with its calls; empty: none.
  // Reloaded when it changes.
  std::string token_file = {};

  // Allow, beyond loopback, serving without TLS or authentication, sending a
  // token without TLS, and exchanging tensors by a library without either.
  bool insecure = false;

  bool operator==(const SecurityOptions&) const = default;
};

// Declare the flags of servers, and those shared with clients: --tls_ca,
// --tls_certificate, --tls_key, --tls_peer_name, --token_file, --insecure.
// `options` must outlive `flags`.
void AddServerSecurityFlags(Flags& flags, SecurityOptions* options);
void AddClientSecurityFlags(Flags& flags, SecurityOptions* options);

// "unix:..." addresses, and the empty one, which means the process itself.
bool IsUnixAddress(absl::string_view address);

// Addresses that only this machine can reach: unix sockets, localhost,
// 127.x.x.x and [::1].
bool IsLocalAddress(absl::string_view address);

// Whether a server at `address` serves TLS; whether a call to it uses TLS.
bool ServesTls(const SecurityOptions& options, absl::string_view address);
bool CallsWithTls(const SecurityOptions& options, absl::string_view address);

// The same for a host, with or without the brackets of "[::1]". Of names only
// localhost counts: others may be redefined.
bool IsLocalHost(absl::string_view host);

// Checks a server's options, without reading files. Errors: InvalidArgument
// that names the flag.
absl::Status ValidateServerSecurity(const SecurityOptions& options,
                                    absl::string_view listen);

// The same for a caller of `address`.
absl::Status ValidateClientSecurity(const SecurityOptions& options,
                                    absl::string_view address);

// Checks whether processes may exchange tensors on `host` by a library without
// authentication and encryption, such as gloo and NCCL: only on loopback,
// unless `insecure` is set. Errors: FailedPrecondition.
absl::Status ValidateOpenExchange(const SecurityOptions& options,
                                  absl::string_view library,
                                  absl::string_view host);

}  // namespace gshard

#endif  // SERVICES_CONFIG_SECURITY_OPTIONS_H_
