// The guard in front of a server's handlers: server credentials that admit only
// calls that the caller may make. A refused call reaches no handler.

#ifndef SERVICES_RPC_SERVER_CALL_GUARD_H_
#define SERVICES_RPC_SERVER_CALL_GUARD_H_

#include <grpcpp/security/auth_context.h>
#include <grpcpp/security/server_credentials.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "services/metrics/metrics.h"
#include "services/rpc/security/security.h"
#include "services/rpc/server/call_count.h"
#include "services/rpc/server/connection_watch.h"

namespace gshard {

// The state that a server's guard checks, and the count of the server's calls,
// which may outlive the guard.
struct CallGate {
  CallGate(int64_t max_calls, const MeterLimits& limits)
      : request_time(limits.request_time),
        calls(max_calls),
        watch(std::make_shared<ConnectionWatch>(limits)) {}

  // How long a request may take to come; see MeterLimits.
  const std::chrono::milliseconds request_time;

  // Refuses all calls with UNAVAILABLE. Once a server's Shutdown() has begun,
  // gRPC would end arriving calls with CANCELLED, which no client takes as a
  // reason to try another server.
  std::atomic<bool> closed = false;

  // The server's Drain() has begun.
  std::atomic<bool> draining = false;

  // The calls that are open, except those of open methods: streams are counted
  // from their start, others once their request has been read. Calls of a
  // caller without room for another one get UNAVAILABLE, before gRPC reads
  // their requests or, if the room has been taken meanwhile, when they would be
  // counted, or when they begin, if they are a connection's first; no handler
  // sees such a request. Calls that only members may make
  // are exempt from this limit, since nothing works without them.
  CallCount calls;
  Counter refused;  // refused by this limit

  // Counts a call that is refused by this limit, and returns its status.
  absl::Status NoRoom() const;

  // Notified of calls from their start.
  const std::shared_ptr<ConnectionWatch> watch;
};

// Uses TLS if `security` has TLS for `address`.
//
// gRPC 1.51's own C++ credentials support such a guard with TLS only. These
// also guard unix sockets and, if configured, TCP without TLS, and check tokens
// there, too.
std::shared_ptr<grpc::ServerCredentials> GuardedCredentials(
    std::shared_ptr<const Security> security,
    std::shared_ptr<const CallGate> gate, const std::string& address);

// Names in the certificate that TLS has verified; empty without a certificate.
std::vector<std::string> CertificateNames(const grpc::AuthContext& context);

}  // namespace gshard

#endif  // SERVICES_RPC_SERVER_CALL_GUARD_H_
