// The server side of streams. Methods are registered raw, so that gRPC passes
// bytes:
//
//   class Service : public v1::ExpertWorkerService::WithRawCallbackMethod_Run<
//                       v1::ExpertWorkerService::Service> {
//     grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Run(
//         grpc::CallbackServerContext* context) override {
//       return ServeStream<ExpertFrame, ExpertFrame>(
//           context, [this](auto sender) { return MakeHandler(sender); });
//     }
//   };

#ifndef SERVICES_RPC_SERVER_SERVER_STREAM_H_
#define SERVICES_RPC_SERVER_SERVER_STREAM_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/rpc/wire/raw_message.h"
#include "services/rpc/wire/status.h"
#include "services/rpc/wire/stream.h"

namespace gshard {

// Takes the bytes of a call's request, which gRPC would keep until the call is
// done. `request` must be the argument of a handler: gRPC's object behind it is
// not const, and is not read again.
inline grpc::ByteBuffer TakeRequest(const grpc::ByteBuffer& request) {
  grpc::ByteBuffer bytes;
  bytes.Swap(const_cast<grpc::ByteBuffer*>(&request));
  return bytes;
}

// Serves a raw unary method with the argument `request`: handle(request, done)
// calls done(response or error) once, from any thread; that ends the call.
template <typename Request, typename Response, typename Handle>
grpc::ServerUnaryReactor* ServeUnary(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer& request,
                                     grpc::ByteBuffer* response,
                                     const Handle& handle) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  const auto parsed = ParseRaw<Request>(TakeRequest(request));
  if (!parsed.ok()) {
    reactor->Finish(ToGrpcStatus(parsed.status()));
    return reactor;
  }
  handle(*parsed, [reactor, response](absl::StatusOr<Response> result) {
    if (result.ok()) *response = SerializeRaw(*result);
    reactor->Finish(ToGrpcStatus(result.status()));
  });
  return reactor;
}

template <typename In, typename Out>
class ServerStream final
    : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
      public OutgoingQueue<Out>::Writer {
 public:
  ServerStream(grpc::CallbackServerContext* context,
               const StreamHandlerFactory<In, Out>& factory,
               const StreamOptions& options)
      : context_(context),
        limits_(options.frame_limits),
        queue_(std::make_shared<OutgoingQueue<Out>>(this,
                                                    options.max_queued_bytes)),
        handler_(factory(queue_)) {
    StartRead(&incoming_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) {  // half-closed by the client, or lost
      queue_->Finish(absl::OkStatus());
      return;
    }
    absl::StatusOr<In> message = Wire<In>::Decode(incoming_, limits_);
    if (!message.ok()) {
      queue_->Abort(message.status());
      return;
    }
    handler_->OnMessage(*std::move(message));
    StartRead(&incoming_);
  }

  void OnWriteDone(bool ok) override { queue_->OnWriteDone(ok); }

  void OnCancel() override {
    queue_->Abort(absl::CancelledError("the client cancelled or was lost"));
  }

  void OnDone() override {
    absl::Status status = queue_->Detach();
    if (status.ok() && context_->IsCancelled()) {
      status = absl::CancelledError("the client cancelled or was lost");
    }
    handler_->OnEnd(status);
    delete this;
  }

  void Write(const grpc::ByteBuffer* message) override { StartWrite(message); }
  void Close(const absl::Status& status) override {
    grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>::Finish(
        ToGrpcStatus(status));
  }
  void CancelCall() override { context_->TryCancel(); }

 private:
  grpc::CallbackServerContext* const context_;
  const FrameLimits limits_;
  grpc::ByteBuffer incoming_;
  const std::shared_ptr<OutgoingQueue<Out>> queue_;
  const std::unique_ptr<StreamHandler<In>> handler_;
};

// Serves a call of a bidirectional method. After the client half-closes, queued
// messages are still sent, and the call ends with OK.
template <typename In, typename Out>
grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* ServeStream(
    grpc::CallbackServerContext* context,
    const StreamHandlerFactory<In, Out>& factory,
    const StreamOptions& options = {}) {
  return new ServerStream<In, Out>(context, factory, options);
}

// Serves one call of a client-streaming method. gRPC's threads call it, one at
// a time. It is destroyed after `done` of OnComplete(), or earlier if the
// client is lost or after an error.
template <typename In, typename Response>
class UploadHandler {
 public:
  virtual ~UploadHandler() = default;

  // An error ends the call with this status.
  virtual absl::Status OnMessage(In message) = 0;

  // The client has half-closed the call or was lost; gRPC may not know which
  // yet. So check that everything has arrived before acting on it. `done` ends
  // the call; call it once, from any thread. This object lives until then.
  using Done = std::function<void(absl::StatusOr<Response>)>;
  virtual void OnComplete(Done done) = 0;
};

template <typename In, typename Response>
class ServerUpload final : public grpc::ServerReadReactor<grpc::ByteBuffer> {
 public:
  ServerUpload(grpc::CallbackServerContext* context, grpc::ByteBuffer* response,
               std::unique_ptr<UploadHandler<In, Response>> handler,
               const FrameLimits& limits)
      : context_(context),
        response_(response),
        handler_(std::move(handler)),
        limits_(limits) {
    StartRead(&incoming_);
  }

  void OnReadDone(bool ok) override {
    if (ok) {
      const absl::Status status = Take();
      if (!status.ok()) return Finish(ToGrpcStatus(status));
      StartRead(&incoming_);
    } else if (context_->IsCancelled()) {
      Finish(grpc::Status::CANCELLED);
    } else {
      handler_->OnComplete([this](absl::StatusOr<Response> response) {
        if (response.ok()) *response_ = SerializeRaw(*response);
        Finish(ToGrpcStatus(response.status()));
      });
    }
  }

  void OnDone() override { delete this; }

 private:
  absl::Status Take() {
    absl::StatusOr<In> message = Wire<In>::Decode(incoming_, limits_);
    if (!message.ok()) return message.status();
    return handler_->OnMessage(*std::move(message));
  }

  grpc::CallbackServerContext* const context_;
  grpc::ByteBuffer* const response_;
  const std::unique_ptr<UploadHandler<In, Response>> handler_;
  const FrameLimits limits_;
  grpc::ByteBuffer incoming_;
};

// Serves a call of a raw client-streaming method.
template <typename In, typename Response>
grpc::ServerReadReactor<grpc::ByteBuffer>* ServeUpload(
    grpc::CallbackServerContext* context, grpc::ByteBuffer* response,
    std::unique_ptr<UploadHandler<In, Response>> handler,
    const FrameLimits& limits = {}) {
  return new ServerUpload<In, Response>(context, response, std::move(handler),
                                        limits);
}

// Returns the next message of a download, nothing at its end, or an error that
// ends the call. Must not block.
template <typename Out>
using NextMessage = std::function<absl::StatusOr<std::optional<Out>>()>;

template <typename Out>
class ServerDownload final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  explicit ServerDownload(NextMessage<Out> next) : next_(std::move(next)) {
    WriteNext();
  }

  void OnWriteDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::CANCELLED);
    WriteNext();
  }

  void OnDone() override { delete this; }

 private:
  void WriteNext() {
    absl::StatusOr<std::optional<Out>> message = next_();
    if (!message.ok() || !message->has_value()) {
      return Finish(ToGrpcStatus(message.status()));
    }
    outgoing_ = Wire<Out>::Encode(**std::move(message));
    StartWrite(&outgoing_);
  }

  const NextMessage<Out> next_;
  grpc::ByteBuffer outgoing_;
};

// Serves a call of a server-streaming method. Calls `next` once the client has
// taken the previous message, so that a slow client holds only one message.
template <typename Out>
grpc::ServerWriteReactor<grpc::ByteBuffer>* ServeDownload(
    NextMessage<Out> next) {
  return new ServerDownload<Out>(std::move(next));
}

}  // namespace gshard

#endif  // SERVICES_RPC_SERVER_SERVER_STREAM_H_
