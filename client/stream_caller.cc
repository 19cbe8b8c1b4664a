#include "client/stream_caller.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/mutex.h"
#include "services/base/status_macros.h"
#include "services/rpc/client/client_stream.h"
#include "services/rpc/wire/status.h"

namespace gshard {
namespace {

constexpr char kMethod[] = "/gshard.v1.TranslationService/TranslateStream";

// Timeout for the end of a finished stream.
constexpr std::chrono::seconds kPatience{1};

using Answer = absl::StatusOr<v1::TranslateResponse>;

}  // namespace

// One stream from its opening to its end. Shared with its reader.
struct StreamCaller::Stream {
  explicit Stream(bool cancelled) : cancelled(cancelled) {}

  Mutex mutex;
  CondVar changed;
  bool ended ABSL_GUARDED_BY(mutex) = false;
  bool cancelled ABSL_GUARDED_BY(mutex);
  absl::Status status ABSL_GUARDED_BY(mutex);  // once it has ended
  // Null: no answer yet.
  std::map<uint64_t, std::unique_ptr<Answer>> calls ABSL_GUARDED_BY(mutex);
  // Set before it is used.
  std::shared_ptr<StreamSender<v1::TranslateStreamRequest>> sender;
};

class StreamCaller::Answers final
    : public StreamHandler<v1::TranslateStreamResponse> {
 public:
  explicit Answers(std::shared_ptr<Stream> stream)
      : stream_(std::move(stream)) {}

  void OnMessage(v1::TranslateStreamResponse message) override {
    const absl::Status status = FromProtoStatus(message.status());
    MutexLock lock(stream_->mutex);
    const auto call = stream_->calls.find(message.id());
    if (call == stream_->calls.end()) return;  // abandoned meanwhile
    call->second =
        status.ok()
            ? std::make_unique<Answer>(std::move(*message.mutable_response()))
            : std::make_unique<Answer>(status);
    stream_->changed.NotifyAll();
  }

  void OnEnd(const absl::Status& status) override {
    MutexLock lock(stream_->mutex);
    stream_->ended = true;
    stream_->status = status.ok() || absl::IsCancelled(status)
                          ? absl::UnavailableError("the stream was lost")
                          : status;
    stream_->changed.NotifyAll();
  }

 private:
  const std::shared_ptr<Stream> stream_;
};

StreamCaller::StreamCaller(std::string address,
                           std::shared_ptr<grpc::Channel> channel)
    : address_(std::move(address)), channel_(std::move(channel)) {}

StreamCaller::~StreamCaller() {
  if (stream_ == nullptr) return;
  if (!cancelled_) stream_->sender->Finish();
  Stream* const stream = stream_.get();
  MutexLock lock(stream->mutex);
  const auto ended = [stream]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(stream->mutex) {
    return stream->ended;
  };
  // Everything is answered: a healthy router ends the stream at once.
  if (!cancelled_) stream_->changed.WaitFor(lock, kPatience, ended);
  if (stream_->ended) return;
  lock.Unlock();
  stream_->sender->Cancel();
  lock.Lock();
  stream_->changed.Wait(lock, ended);
}

std::shared_ptr<StreamCaller::Stream> StreamCaller::LiveStream() {
  if (stream_ != nullptr) {
    MutexLock lock(stream_->mutex);
    if (!stream_->ended) return stream_;
  }
  stream_ = std::make_shared<Stream>(cancelled_);
  stream_->sender =
      OpenStream<v1::TranslateStreamRequest, v1::TranslateStreamResponse>(
          channel_, kMethod,
          [this](const auto&) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
            return std::make_unique<Answers>(stream_);
          });
  return stream_;
}

absl::StatusOr<v1::TranslateResponse> StreamCaller::Translate(
    const v1::TranslateRequest& request, std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  v1::TranslateStreamRequest message;
  *message.mutable_request() = request;
  message.set_timeout_ms(timeout.count());
  std::shared_ptr<Stream> stream;
  {
    MutexLock lock(mutex_);
    message.set_id(++last_id_);
    stream = LiveStream();
  }
  const uint64_t id = message.id();
  MutexLock lock(stream->mutex);
  stream->calls[id] = nullptr;
  lock.Unlock();
  const absl::Status sent = stream->sender->Send(std::move(message));
  lock.Lock();
  std::unique_ptr<Answer>& answer = stream->calls[id];
  // A stream that accepts no more is about to end, with the reason.
  if (sent.ok() || absl::IsUnavailable(sent)) {
    // The router answers in time, if it can.
    stream->changed.WaitUntil(
        lock, deadline, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(stream->mutex) {
          return answer != nullptr || stream->ended || stream->cancelled;
        });
  }
  Answer result = absl::DeadlineExceededError(
      absl::StrCat("router ", address_, " did not answer"));
  if (answer != nullptr) {
    result = std::move(*answer);
  } else if (stream->cancelled) {
    result = absl::CancelledError("given up");
  } else if (stream->ended) {
    result = Annotate(stream->status, absl::StrCat("router ", address_));
  } else if (!sent.ok()) {
    result = sent;
  }
  stream->calls.erase(id);
  return result;
}

void StreamCaller::Cancel() {
  MutexLock lock(mutex_);
  cancelled_ = true;
  if (stream_ == nullptr) return;
  MutexLock stream_lock(stream_->mutex);
  stream_->cancelled = true;
  stream_->changed.NotifyAll();
}

}  // namespace gshard
