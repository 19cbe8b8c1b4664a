// CallInfo: what a handler needs to know about its call: the caller, request id
// and trace. Never log a request's contents.
//
//   const CallInfo info = CallInfoOf(*context);
//   limits.Charge(info.caller.name);
//
// Clients may send "x-request-id", "traceparent" and "tracestate"; invalid
// values are replaced. Every response of a handler carries "x-request-id"; a
// call that the guard refuses has the id in its error message.

#ifndef SERVICES_RPC_SERVER_CALL_INFO_H_
#define SERVICES_RPC_SERVER_CALL_INFO_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_interceptor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "services/rpc/security/security.h"
#include "services/rpc/server/call_guard.h"
#include "services/rpc/wire/trace_context.h"
#include "services/rpc/wire/tracer.h"

namespace gshard {

struct CallInfo {
  Caller caller;  // "anonymous" if unknown
  std::string request_id;
  TraceContext trace;  // with a span of this hop
};

// The info of a call that a ServerShell serves. For a call of any other server:
// an anonymous caller without rights, the client's request id if it is valid,
// and a new span. Call it from the handler.
CallInfo CallInfoOf(const grpc::ServerContextBase& context);

// Lines per second and method about calls, and as many about failures below.
inline constexpr int64_t kCallLinesPerSecond = 20;

// Logs the end of a call, or of message `message_id` of its stream. Failures of
// this server (INTERNAL, UNKNOWN, DATA_LOSS, UNAVAILABLE, DEADLINE_EXCEEDED)
// are warnings with their reason, which must not quote the request; other
// errors may. Of messages, only these failures are logged. Of a server that is
// `draining`, UNAVAILABLE is no failure.
void LogCall(absl::string_view method, const CallInfo& info,
             const absl::Status& status,
             std::chrono::steady_clock::duration took,
             std::optional<uint64_t> message_id = std::nullopt,
             bool draining = false);

// Implementation, for ServerShell: determines the CallInfo of every call,
// counts the call in the gate until it is over, or ends it if there is no room,
// and sends the request id with the response. `raw_services`: see
// call_watch.h; in others a handler may see the request of a call that was
// ended. Unless the method is open to everybody, creates a span and logs the
// end of the call.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>
CallInfoFactory(std::shared_ptr<const Security> security,
                std::shared_ptr<CallGate> gate,
                std::set<std::string> raw_services, Tracer tracer = {});

}  // namespace gshard

#endif  // SERVICES_RPC_SERVER_CALL_INFO_H_
