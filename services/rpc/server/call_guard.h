// The guard before a server's handlers: server credentials that pass only calls
// that the caller may make. A refused call reaches no handler.

#ifndef SERVICES_RPC_SERVER_CALL_GUARD_H_
#define SERVICES_RPC_SERVER_CALL_GUARD_H_

#include <grpcpp/security/auth_context.h>
#include <grpcpp/security/server_credentials.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "services/metrics/metrics.h"
#include "services/rpc/security/security.h"
#include "services/rpc/server/call_count.h"
#include "services/rpc/server/connection_watch.h"

namespace gshard {

// What a server's guard goes by, and its calls, which may outlive it.
struct CallGate {
  CallGate(int64_t max_calls, const MeterLimits& limits)
      : calls(max_calls), watch(std::make_shared<ConnectionWatch>(limits)) {}

  // All calls get UNAVAILABLE: after a server's Shutdown() has begun gRPC would
  // say CANCELLED to those on their way, which nobody takes for "go elsewhere".
  std::atomic<bool> closed = false;

  // Calls that are not over, but for open methods: streams from their start,
  // others from when their request has been read. Those of a caller that has no
  // room for another one get UNAVAILABLE before gRPC reads their requests; what
  // only members may call has no such limit, for nothing goes on without it.
  CallCount calls;
  Counter refused;  // for that reason

  // Told of calls from their start.
  const std::shared_ptr<ConnectionWatch> watch;
};

// With TLS if `security` has it for `address`.
//
// gRPC 1.51 supports a guard for TLS only; unix sockets and, if configured, TCP
// are served without TLS, where tokens are checked, too.
std::shared_ptr<grpc::ServerCredentials> GuardedCredentials(
    std::shared_ptr<const Security> security,
    std::shared_ptr<const CallGate> gate, const std::string& address);

// Names in the certificate that TLS has verified; none without.
std::vector<std::string> CertificateNames(const grpc::AuthContext& context);

}  // namespace gshard

#endif  // SERVICES_RPC_SERVER_CALL_GUARD_H_
