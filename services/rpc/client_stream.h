// The calling side of streams.
//
//   auto sender = OpenStream<ExpertFrame, ExpertFrame>(
//       channel, "/gshard.v1.ExpertWorkerService/Run",
//       [&](auto sender) { return std::make_unique<Replies>(...); });
//   RETURN_IF_ERROR(sender->Send(frame));

#ifndef SERVICES_RPC_CLIENT_STREAM_H_
#define SERVICES_RPC_CLIENT_STREAM_H_

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/client_callback.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/rpc/channel.h"
#include "services/rpc/status.h"
#include "services/rpc/stream.h"

namespace gshard {

template <typename Out, typename In>
class ClientStream final
    : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
      public OutgoingQueue<Out>::Writer {
 public:
  ClientStream(std::shared_ptr<grpc::Channel> channel,
               const StreamHandlerFactory<In, Out>& factory,
               const StreamOptions& options)
      : channel_(std::move(channel)),
        stub_(channel_),
        limits_(options.frame_limits),
        queue_(std::make_shared<OutgoingQueue<Out>>(this,
                                                    options.max_queued_bytes)),
        handler_(factory(queue_)) {}

  std::shared_ptr<StreamSender<Out>> Start(
      const std::string& method,
      std::optional<std::chrono::milliseconds> timeout) {
    std::shared_ptr<StreamSender<Out>> sender = queue_;
    if (timeout.has_value()) SetDeadline(context_, *timeout);
    stub_.PrepareBidiStreamingCall(&context_, method, {}, this);
    // Senders write from outside of reactions, until Close().
    AddHold();
    StartRead(&incoming_);
    StartCall();
    return sender;  // `this` may be gone already
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      queue_->Abort(absl::OkStatus());
      return;
    }
    absl::StatusOr<In> message = Wire<In>::Decode(incoming_, limits_);
    if (!message.ok()) {
      decode_error_ = message.status();
      context_.TryCancel();
      queue_->Abort(absl::OkStatus());
      return;
    }
    handler_->OnMessage(*std::move(message));
    StartRead(&incoming_);
  }

  void OnWriteDone(bool ok) override { queue_->OnWriteDone(ok); }

  void OnDone(const grpc::Status& status) override {
    (void)queue_->Detach();
    const absl::Status end =
        decode_error_.ok() ? FromGrpcStatus(status) : decode_error_;
    const std::unique_ptr<StreamHandler<In>> handler = std::move(handler_);
    // The call and the channel go before the owner is told: it may end the
    // process next.
    delete this;
    handler->OnEnd(end);
  }

  void Write(const grpc::ByteBuffer* message) override { StartWrite(message); }
  void Close(const absl::Status&) override {
    StartWritesDone();
    RemoveHold();
  }
  void CancelCall() override { context_.TryCancel(); }

 private:
  const std::shared_ptr<grpc::Channel> channel_;
  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  const FrameLimits limits_;
  grpc::ByteBuffer incoming_;
  absl::Status decode_error_;
  const std::shared_ptr<OutgoingQueue<Out>> queue_;
  std::unique_ptr<StreamHandler<In>> handler_;
};

// Begins a call of any streaming method, named "/package.Service/Method". Never
// blocks; a peer that cannot be reached shows in OnEnd(). Without `timeout` the
// stream lasts until one side ends it: Cancel() or Finish() the sender.
//
// The caller keeps a reference to `channel` until OnEnd(): gRPC 1.51 joins its
// threads when the last channel goes, and must not do so on one of these.
template <typename Out, typename In>
std::shared_ptr<StreamSender<Out>> OpenStream(
    std::shared_ptr<grpc::Channel> channel, const std::string& method,
    const StreamHandlerFactory<In, Out>& factory,
    const StreamOptions& options = {},
    std::optional<std::chrono::milliseconds> timeout = std::nullopt) {
  auto* stream =
      new ClientStream<Out, In>(std::move(channel), factory, options);
  return stream->Start(method, timeout);
}

}  // namespace gshard

#endif  // SERVICES_RPC_CLIENT_STREAM_H_
