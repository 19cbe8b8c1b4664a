// CallInfo: metadata of the call that a handler serves: caller, request id and
// trace. Never log a request's contents.
//
//   const CallInfo info = CallInfoOf(*context);
//   limits.Charge(info.caller.name);
//
// Clients may send "x-request-id", "traceparent" and "tracestate"; what is not
// valid is replaced. Every answer of a handler carries "x-request-id"; a call
// that the guard refuses has the id in its message.

#ifndef SERVICES_RPC_SERVER_CALL_INFO_H_
#define SERVICES_RPC_SERVER_CALL_INFO_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_interceptor.h>

#include <memory>
#include <string>

#include "services/rpc/security/security.h"
#include "services/rpc/server/call_guard.h"
#include "services/rpc/wire/trace_context.h"
#include "services/rpc/wire/tracer.h"

namespace gshard {

struct CallInfo {
  Caller caller;  // "anonymous" if nobody asks
  std::string request_id;
  TraceContext trace;  // with a span of this hop
};

// Of a call that a ServerShell serves; of another server's, an anonymous
// caller, who may do nothing, with an id and a trace of its own. Call it from
// the handler.
CallInfo CallInfoOf(const grpc::ServerContextBase& context);

// Implementation, for ServerShell: determines this for every call, counts the
// call in the gate until it is over, answers with the id, makes a span of it
// unless everybody may call it, and logs its end, at most this many lines per
// second.
inline constexpr int64_t kCallLinesPerSecond = 20;
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>
CallInfoFactory(std::shared_ptr<const Security> security,
                std::shared_ptr<CallGate> gate, Tracer tracer = {});

}  // namespace gshard

#endif  // SERVICES_RPC_SERVER_CALL_INFO_H_
