// RawService: a service of raw methods whose calls begin before their requests
// are read.
//
// gRPC reads the request of a unary or server-streaming call before any
// application code learns of the call. The held bytes could then not be
// attributed to a peer, nor could a call be ended whose request never arrives.
// From the server's point of view such a call is a stream with one message to
// read, so these methods are registered as streams and read once the call's
// interceptors exist. Handlers do not change: they are called with the request.
//
//   class Service final
//       : public RawService<v1::FooService::WithRawCallbackMethod_Get<
//             v1::FooService::Service>> {
//    public:
//     Service() { DeferRead(MethodIndex("foo.Foo.Get"), &Service::Get); }
//     grpc::ServerUnaryReactor* Get(grpc::CallbackServerContext*,
//                                   const grpc::ByteBuffer* request,
//                                   grpc::ByteBuffer* response) override;
//   };

#ifndef SERVICES_RPC_SERVER_RAW_SERVICE_H_
#define SERVICES_RPC_SERVER_RAW_SERVICE_H_

#include <google/protobuf/descriptor.h>
#include <grpc/grpc.h>
#include <grpcpp/impl/codegen/server_callback_handlers.h>
#include <grpcpp/impl/service_type.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <functional>
#include <new>
#include <string>
#include <utility>

#include "services/base/check.h"

namespace gshard {

// The service of "/package.Service/Method".
inline std::string ServiceOf(const std::string& method) {
  return method.substr(1, method.rfind('/') - 1);
}

// Marks services that receive all messages as bytes.
class RawMethods {
 public:
  virtual ~RawMethods() = default;
};

// Implementation: reads the one message of a call, then runs gRPC's own
// `Handler` with it.
template <typename Handler, typename Request>
class DeferredReadHandler final : public grpc::internal::MethodHandler {
 public:
  template <typename GetReactor>
  explicit DeferredReadHandler(GetReactor get_reactor)
      : handler_(std::move(get_reactor)) {}

  void RunHandler(const HandlerParameter& parameter) override {
    grpc_call* const call = parameter.call->call();
    (new (Allocate<Reading>(call)) Reading(&handler_, parameter))->Start();
  }

 private:
  template <typename T>
  static void* Allocate(grpc_call* call) {
    return grpc::g_core_codegen_interface->grpc_call_arena_alloc(call,
                                                                 sizeof(T));
  }

  // The read of one call, allocated in the call's arena.
  class Reading {
   public:
    Reading(Handler* handler, const HandlerParameter& parameter)
        : handler_(handler),
          call_(*parameter.call),
          context_(parameter.server_context),
          requester_(parameter.call_requester),
          request_(new (Allocate<Request>(call_.call())) Request) {}

    void Start() {
      tag_.Set(
          call_.call(), [this](bool ok) { Finish(ok); }, &ops_,
          /*can_inline=*/false);
      ops_.set_core_cq_tag(&tag_);
      ops_.RecvMessage(Bytes(*request_));
      call_.PerformOps(&ops_);
    }

   private:
    static grpc::ByteBuffer* Bytes(grpc::ByteBuffer& request) {
      return &request;
    }
    template <typename Holder>
    static grpc::ByteBuffer* Bytes(Holder& holder) {
      return holder.request();
    }

    void Finish(bool ok) {
      // An interceptor that has refused the call has taken the message away; a
      // message without bytes is valid.
      const bool has_message = ok && Bytes(*request_)->Valid();
      // Without one, gRPC's handler ends the call in the same way as after a
      // message that cannot be decoded; call_info.cc says with which status.
      handler_->RunHandler(HandlerParameter(
          &call_, context_, request_,
          has_message ? grpc::Status::OK
                      : grpc::Status(grpc::StatusCode::INTERNAL, ""),
          request_, std::move(requester_)));
      // This object is in the call's memory, which the handler may have
      // released by now.
      grpc_call* const call = call_.call();
      grpc_call_ref(call);
      this->~Reading();
      grpc_call_unref(call);
    }

    Handler* const handler_;
    grpc::internal::Call call_;
    grpc::ServerContextBase* const context_;
    std::function<void()> requester_;
    Request* const request_;
    grpc::internal::CallOpSet<
        grpc::internal::CallOpRecvMessage<grpc::ByteBuffer>>
        ops_;
    grpc::internal::CallbackWithSuccessTag tag_;
  };

  Handler handler_;
};

// The index of "package.Service.Method" in its proto.
inline int MethodIndex(const char* name) {
  const google::protobuf::MethodDescriptor* const method =
      google::protobuf::DescriptorPool::generated_pool()->FindMethodByName(
          name);
  CHECK(method != nullptr);
  return method->index();
}

template <typename Base>
class RawService : public Base, public RawMethods {
 protected:
  // Registers `method` for the method of index `index`, see MethodIndex(). The
  // constructor of `Service`, which derives from this class, must do this for
  // each of its unary and server-streaming methods.
  template <typename Service>
  void DeferRead(int index, grpc::ServerUnaryReactor* (Service::*method)(
                                grpc::CallbackServerContext*,
                                const grpc::ByteBuffer*, grpc::ByteBuffer*)) {
    using Holder = grpc::internal::DefaultMessageHolder<grpc::ByteBuffer,
                                                        grpc::ByteBuffer>;
    using Handler = grpc::internal::CallbackUnaryHandler<grpc::ByteBuffer,
                                                         grpc::ByteBuffer>;
    auto* const service = static_cast<Service*>(this);
    this->MarkMethodStreamed(
        index, new DeferredReadHandler<Handler, Holder>(
                   [service, method](grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) {
                     return (service->*method)(context, request, response);
                   }));
  }
  template <typename Service>
  void DeferRead(int index,
                 grpc::ServerWriteReactor<grpc::ByteBuffer>* (Service::*method)(
                     grpc::CallbackServerContext*, const grpc::ByteBuffer*)) {
    using Handler =
        grpc::internal::CallbackServerStreamingHandler<grpc::ByteBuffer,
                                                       grpc::ByteBuffer>;
    auto* const service = static_cast<Service*>(this);
    this->MarkMethodStreamed(
        index, new DeferredReadHandler<Handler, grpc::ByteBuffer>(
                   [service, method](grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request) {
                     return (service->*method)(context, request);
                   }));
  }
};

}  // namespace gshard

#endif  // SERVICES_RPC_SERVER_RAW_SERVICE_H_
