#include "services/rpc/server/call_watch.h"

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/interceptor.h>

#include <algorithm>
#include <utility>

#include "services/rpc/security/method_roles.h"
#include "services/rpc/server/raw_service.h"

namespace gshard {
namespace {

using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::InterceptorBatchMethods;
using grpc::experimental::ServerRpcInfo;

// Maximum bytes forgiven for the headers of a known caller's call, tokens
// included. Without a limit, a client could hide other bytes behind a series of
// calls.
constexpr int64_t kMaxForgiven = 8 << 10;

int64_t HeaderBytes(const grpc::ServerContextBase& context) {
  int64_t bytes = 256;  // for HTTP/2 and gRPC itself
  for (const auto& [key, value] : context.client_metadata()) {
    bytes += static_cast<int64_t>(key.size() + value.size());
  }
  return std::min(bytes, kMaxForgiven);
}

// The interceptor of one call.
class CallWatchInterceptor final : public grpc::experimental::Interceptor {
 public:
  CallWatchInterceptor(std::shared_ptr<ConnectionWatch> watch,
                       ServerRpcInfo* rpc, bool raw)
      : watch_(std::move(watch)),
        rpc_(rpc),
        access_(FindMethodAccess(rpc->method())),
        raw_(raw) {}
  ~CallWatchInterceptor() override { End(); }

  void Intercept(InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(
            InterceptionHookPoints::POST_RECV_INITIAL_METADATA)) {
      Begin();
    }
    if (methods->QueryInterceptionHookPoint(
            InterceptionHookPoints::POST_RECV_MESSAGE)) {
      Take(methods->GetRecvMessage());
    }
    if (methods->QueryInterceptionHookPoint(
            InterceptionHookPoints::PRE_SEND_STATUS)) {
      if (call_ != 0) watch_->StopReading(call_);
    }
    methods->Proceed();
  }

 private:
  void Begin() {
    if (access_ == nullptr) return;
    grpc::ServerContextBase& context = *rpc_->server_context();
    if (access_->for_members()) return watch_->Trust(context.peer());
    call_ =
        watch_->Begin(context.peer(),
                      {.max_message = access_->max_message,
                       .header_bytes = access_->open ? 0 : HeaderBytes(context),
                       .one_message = access_->one_message,
                       .brief = access_->open && access_->one_answer},
                      context.c_call());
  }

  // Null: the client sends no more messages.
  void Take(const void* message) {
    if (call_ == 0) return;
    if (message == nullptr) return watch_->StopReading(call_);
    watch_->Deliver(
        call_,
        raw_ ? static_cast<int64_t>(
                   static_cast<const grpc::ByteBuffer*>(message)->Length())
             : access_->max_message);
  }

  void End() {
    if (call_ != 0) watch_->End(std::exchange(call_, 0));
  }

  const std::shared_ptr<ConnectionWatch> watch_;
  ServerRpcInfo* const rpc_;
  const MethodAccess* const access_;
  const bool raw_;
  uint64_t call_ = 0;  // 0: not watched
};

class CallWatchInterceptorFactory final
    : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  CallWatchInterceptorFactory(std::shared_ptr<ConnectionWatch> watch,
                              std::set<std::string> raw_services)
      : watch_(std::move(watch)), raw_services_(std::move(raw_services)) {}

  grpc::experimental::Interceptor* CreateServerInterceptor(
      ServerRpcInfo* rpc) override {
    return new CallWatchInterceptor(
        watch_, rpc, raw_services_.contains(ServiceOf(rpc->method())));
  }

 private:
  const std::shared_ptr<ConnectionWatch> watch_;
  const std::set<std::string> raw_services_;
};

}  // namespace

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>
CallWatchFactory(std::shared_ptr<ConnectionWatch> watch,
                 std::set<std::string> raw_services) {
  return std::make_unique<CallWatchInterceptorFactory>(std::move(watch),
                                                       std::move(raw_services));
}

}  // namespace gshard
