// The client side of streams.
//
//   auto sender = OpenStream<ExpertFrame, ExpertFrame>(
//       channel, "/gshard.v1.ExpertWorkerService/Run",
//       [&](auto sender) { return std::make_unique<Replies>(...); });
//   RETURN_IF_ERROR(sender->Send(frame));

#ifndef SERVICES_RPC_CLIENT_CLIENT_STREAM_H_
#define SERVICES_RPC_CLIENT_CLIENT_STREAM_H_

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/client_callback.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/base/mutex.h"
#include "services/rpc/client/channel.h"
#include "services/rpc/client/reaper.h"
#include "services/rpc/wire/status.h"
#include "services/rpc/wire/stream.h"

namespace gshard {

// The longest delay from the end of a stream until its handler is notified.
// gRPC itself notifies at once, unless the socket still has bytes of the stream
// to send: then it waits until the peer reads them, regardless of cancellation,
// timeouts or pings. TCP ends that by its user timeout; a unix socket with a
// paused peer never does.
inline constexpr std::chrono::milliseconds kStreamEndPatience{2'000};

// Implementation: calls OnEnd() of a handler once, from whichever thread is
// first.
template <typename In>
class StreamEnd {
 public:
  explicit StreamEnd(std::unique_ptr<StreamHandler<In>> handler)
      : handler_(std::move(handler)), reader_(handler_.get()) {}

  // Valid until the last message has been read.
  StreamHandler<In>& handler() { return *reader_; }

  // For the thread that calls OnEnd(); null if another has taken it.
  std::unique_ptr<StreamHandler<In>> Take() {
    MutexLock lock(mutex_);
    return std::move(handler_);
  }

 private:
  Mutex mutex_;
  // Null once taken.
  std::unique_ptr<StreamHandler<In>> handler_ ABSL_GUARDED_BY(mutex_);
  StreamHandler<In>* const reader_;
};

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
        end_(std::make_shared<StreamEnd<In>>(factory(queue_))) {}

  std::shared_ptr<StreamSender<Out>> Start(
      const std::string& method,
      std::optional<std::chrono::milliseconds> timeout) {
    std::shared_ptr<StreamSender<Out>> sender = queue_;
    if (timeout.has_value()) {
      SetDeadline(context_, *timeout);
      deadline_ = std::chrono::steady_clock::now() + *timeout;
    }
    stub_.PrepareBidiStreamingCall(&context_, method, {}, this);
    // Senders write outside of reactions, until Close().
    AddHold();
    StartRead(&incoming_);
    StartCall();
    return sender;  // the stream may have been deleted already
  }

  void OnReadDone(bool ok) override {
    if (!ok) return OnLastRead();
    absl::StatusOr<In> message = Wire<In>::Decode(incoming_, limits_);
    if (!message.ok()) {
      decode_error_ = message.status();
      context_.TryCancel();
      return OnLastRead();
    }
    end_->handler().OnMessage(*std::move(message));
    StartRead(&incoming_);
  }

  void OnWriteDone(bool ok) override { queue_->OnWriteDone(ok); }

  void OnDone(const grpc::Status& status) override {
    (void)queue_->Detach();
    const absl::Status end =
        decode_error_.ok() ? FromGrpcStatus(status) : decode_error_;
    const std::unique_ptr<StreamHandler<In>> handler = end_->Take();
    // If the owner was notified earlier, it may have released the channel. Then
    // this is the last reference, which must not be released before that of the
    // stream.
    std::shared_ptr<grpc::Channel> last =
        handler == nullptr ? channel_ : nullptr;
    // Release the call and the channel before the owner is notified, since it
    // may then end the process.
    delete this;
    if (last != nullptr) ReapChannel(std::move(last));
    if (handler != nullptr) handler->OnEnd(end);
  }

  void Write(const grpc::ByteBuffer* message) override { StartWrite(message); }
  void Close(const absl::Status&) override {
    StartWritesDone();
    RemoveHold();
  }
  void CancelCall() override {
    cancelled_ = true;
    context_.TryCancel();
  }

 private:
  // The call is over, except for what gRPC has not released yet.
  void OnLastRead() {
    queue_->Abort(absl::OkStatus());
    const std::weak_ptr<StreamEnd<In>> end = end_;
    ReapAfter(kStreamEndPatience, [end, status = LateEnd()] {
      const auto untold = end.lock();
      const auto handler = untold == nullptr ? nullptr : untold->Take();
      if (handler != nullptr) handler->OnEnd(status);
    });
  }

  // The status for the handler if gRPC's own comes too late.
  absl::Status LateEnd() const {
    if (!decode_error_.ok()) return decode_error_;
    if (cancelled_) return absl::CancelledError("the stream was cancelled");
    if (deadline_.has_value() &&
        std::chrono::steady_clock::now() >= *deadline_) {
      return absl::DeadlineExceededError("Deadline Exceeded");
    }
    return absl::UnavailableError("the peer takes nothing that is sent");
  }

  const std::shared_ptr<grpc::Channel> channel_;
  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  const FrameLimits limits_;
  std::optional<std::chrono::steady_clock::time_point> deadline_;
  std::atomic<bool> cancelled_ = false;
  grpc::ByteBuffer incoming_;
  absl::Status decode_error_;
  const std::shared_ptr<OutgoingQueue<Out>> queue_;
  const std::shared_ptr<StreamEnd<In>> end_;
};

// Begins a call of any streaming method, named "/package.Service/Method". Never
// blocks; a failure to reach the peer is reported by OnEnd(). Without `timeout`
// the stream lasts until one side ends it: call Cancel() or Finish() of the
// sender. OnEnd() is called within kStreamEndPatience of the end, by a thread
// of gRPC or of the reaper.
//
// The caller keeps a reference to `channel` until OnEnd(), or its handler keeps
// one and releases it by ReapChannel().
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

#endif  // SERVICES_RPC_CLIENT_CLIENT_STREAM_H_
