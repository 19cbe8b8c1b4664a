// The guard before a server's handlers: credentials to listen with that let
// only those calls through that their caller may make. A refused call reaches
// no handler.

#ifndef SERVICES_RPC_CALL_GUARD_H_
#define SERVICES_RPC_CALL_GUARD_H_

#include <grpcpp/security/auth_context.h>
#include <grpcpp/security/server_credentials.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "services/rpc/security.h"

namespace gshard {

// With TLS if `security` has it for `address`. Once `closed` is true all calls
// get UNAVAILABLE: after a server's Shutdown() has begun gRPC would say
// CANCELLED to those on their way, which nobody takes for "go elsewhere".
//
// gRPC 1.51 takes a guard for TLS only; we serve unix sockets and, if told so,
// TCP without, where tokens count too.
std::shared_ptr<grpc::ServerCredentials> GuardedCredentials(
    std::shared_ptr<const Security> security,
    std::shared_ptr<const std::atomic<bool>> closed,
    const std::string& address);

// Names in the certificate that TLS has verified; none without.
std::vector<std::string> CertificateNames(const grpc::AuthContext& context);

}  // namespace gshard

#endif  // SERVICES_RPC_CALL_GUARD_H_
