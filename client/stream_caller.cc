#include "client/stream_caller.h"

#include <condition_variable>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/rpc/client/client_stream.h"
#include "services/rpc/wire/status.h"

namespace gshard {
namespace {

constexpr char kMethod[] = "/gshard.v1.TranslationService/TranslateStream";

// For the end of a stream that is finished.
constexpr std::chrono::seconds kPatience{1};

using Answer = absl::StatusOr<v1::TranslateResponse>;

}  // namespace

// One stream from its opening to its end. Shared with its reader.
struct StreamCaller::Stream {
  std::mutex mutex;
  std::condition_variable changed;
  bool ended = false;                                 // guarded by mutex
  bool cancelled = false;                             // guarded by mutex
  absl::Status status;                                // once it has ended
  std::map<uint64_t, std::unique_ptr<Answer>> calls;  // null: no answer yet
  std::shared_ptr<StreamSender<v1::TranslateStreamRequest>> sender;
};

class StreamCaller::Answers final
    : public StreamHandler<v1::TranslateStreamResponse> {
 public:
  explicit Answers(std::shared_ptr<Stream> stream)
      : stream_(std::move(stream)) {}

  void OnMessage(v1::TranslateStreamResponse message) override {
    const absl::Status status = FromProtoStatus(message.status());
    std::lock_guard<std::mutex> lock(stream_->mutex);
    const auto call = stream_->calls.find(message.id());
    if (call == stream_->calls.end()) return;  // given up meanwhile
    call->second =
        status.ok()
            ? std::make_unique<Answer>(std::move(*message.mutable_response()))
            : std::make_unique<Answer>(status);
    stream_->changed.notify_all();
  }

  void OnEnd(const absl::Status& status) override {
    std::lock_guard<std::mutex> lock(stream_->mutex);
    stream_->ended = true;
    stream_->status = status.ok() || absl::IsCancelled(status)
                          ? absl::UnavailableError("the stream was lost")
                          : status;
    stream_->changed.notify_all();
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
  std::unique_lock<std::mutex> lock(stream_->mutex);
  const auto ended = [this] { return stream_->ended; };
  // All is answered: a router that is well ends the stream at once.
  if (!cancelled_) stream_->changed.wait_for(lock, kPatience, ended);
  if (stream_->ended) return;
  lock.unlock();
  stream_->sender->Cancel();
  lock.lock();
  stream_->changed.wait(lock, ended);
}

std::shared_ptr<StreamCaller::Stream> StreamCaller::LiveStream() {
  if (stream_ != nullptr) {
    std::lock_guard<std::mutex> lock(stream_->mutex);
    if (!stream_->ended) return stream_;
  }
  stream_ = std::make_shared<Stream>();
  stream_->cancelled = cancelled_;
  stream_->sender =
      OpenStream<v1::TranslateStreamRequest, v1::TranslateStreamResponse>(
          channel_, kMethod,
          [this](const auto&) { return std::make_unique<Answers>(stream_); });
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
    std::lock_guard<std::mutex> lock(mutex_);
    message.set_id(++last_id_);
    stream = LiveStream();
  }
  const uint64_t id = message.id();
  std::unique_lock<std::mutex> lock(stream->mutex);
  stream->calls[id] = nullptr;
  lock.unlock();
  const absl::Status sent = stream->sender->Send(std::move(message));
  lock.lock();
  std::unique_ptr<Answer>& answer = stream->calls[id];
  // A stream that takes no more is about to end, and says why then.
  if (sent.ok() || absl::IsUnavailable(sent)) {
    // The router answers in time, unless it cannot.
    stream->changed.wait_until(lock, deadline, [&] {
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
  std::lock_guard<std::mutex> lock(mutex_);
  cancelled_ = true;
  if (stream_ == nullptr) return;
  std::lock_guard<std::mutex> stream_lock(stream_->mutex);
  stream_->cancelled = true;
  stream_->changed.notify_all();
}

}  // namespace gshard
