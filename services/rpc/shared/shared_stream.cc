#include "services/rpc/shared/shared_stream.h"

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/log.h"
#include "services/base/status_macros.h"
#include "services/rpc/shared/frame_reader.h"
#include "services/rpc/shared/frame_writer.h"
#include "services/rpc/shared/shared_bell.h"
#include "services/rpc/shared/shared_memory.h"
#include "services/rpc/wire/status.h"

namespace gshard {
namespace {

using Clock = std::chrono::steady_clock;
using Handler = StreamHandler<ExpertFrame>;
using Sender = StreamSender<ExpertFrame>;

// Frames to read before checking for frames that wait to be written.
constexpr int kFramesInTurn = 16;

// Interval of attempts to wake the thread, since the peer may reset its bell.
constexpr std::chrono::milliseconds kWakeInterval{10};

ExpertFrame SharedFrame(const absl::Status& status) {
  ExpertFrame frame;
  frame.header.set_kind(v1::ExpertFrameHeader::SHARED);
  *frame.header.mutable_status() = ToProtoStatus(status);
  return frame;
}

bool IsShared(const ExpertFrame& frame) {
  return frame.header.kind() == v1::ExpertFrameHeader::SHARED;
}

// The rings of a stream and the thread that serves this side of them: it reads
// what the peer writes, and writes what there was no room for at first. This
// class sits between the stream and the handler, and is the handler's sender.
class SharedStream final : public Sender {
 public:
  SharedStream(std::shared_ptr<Sender> stream, bool client,
               SharingOptions sharing, const StreamOptions& options)
      : stream_(std::move(stream)),
        client_(client),
        sharing_(std::move(sharing)),
        options_(options) {
    if (!client_) return;
    absl::StatusOr<std::unique_ptr<SharedMemory>> memory =
        SharedMemory::Create(sharing_.ring_bytes, sharing_.account);
    if (memory.ok()) {
      memory_ = *std::move(memory);
    } else {
      LogSocket(memory.status());
    }
  }

  // Call before anything else.
  void SetHandler(Handler* handler) { handler_ = handler; }

  absl::Status Send(ExpertFrame frame) override {
    MutexLock lock(mutex_);
    if (finishing_ || over_) {
      return absl::UnavailableError("the stream has ended");
    }
    if (!by_ring_) {
      if (state_ == State::kNew) {
        state_ = memory_ == nullptr ? State::kSocket : State::kOffered;
        if (memory_ != nullptr)
          *frame.header.mutable_offer() = memory_->offer();
      }
      return stream_->Send(std::move(frame));
    }
    const size_t bytes = sizeof(FramePrefix) + frame.header.ByteSizeLong() +
                         PayloadBytes(frame.tensors);
    if (!queue_.empty() && queued_bytes_ + bytes > options_.max_queued_bytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the peer is too slow: ", queued_bytes_,
                       " bytes wait for it, at "
                       "most ",
                       options_.max_queued_bytes, " may"));
    }
    Queue(std::move(frame));
    return absl::OkStatus();
  }

  void Finish(const absl::Status& status) override {
    MutexLock lock(mutex_);
    if (finishing_ || over_) return;
    finishing_ = true;
    finish_status_ = status;
    // If an offer is pending, finish after the server's answer, which decides
    // where the end is announced.
    if (state_ != State::kOffered) BeginFinish();
  }

  void Cancel() override { stream_->Cancel(); }

  // Called by the stream.
  void OnMessage(ExpertFrame frame) {
    if (client_ ? TakenByClient(frame) : TakenByServer(frame)) return;
    handler_->OnMessage(std::move(frame));
  }

  // Called by the stream, once. Returns the status for the handler.
  absl::Status OnEnd(const absl::Status& status) {
    StopThread();
    // A server has written all of its frames before it ends the stream.
    absl::Status drained =
        client_ && reader_ != nullptr ? Drain() : absl::OkStatus();
    MutexLock lock(mutex_);
    over_ = true;
    queue_.clear();
    writer_ = nullptr;
    reader_ = nullptr;
    ring_ = nullptr;
    memory_ = nullptr;
    if (error_.ok()) error_ = std::move(drained);
    return error_.ok() ? status : error_;
  }

 private:
  enum class State { kNew, kOffered, kShared, kSocket };

  static void LogSocket(const absl::Status& why) {
    Log(LogSeverity::kInfo, "frames of a stream go through its socket",
        {{"status", why}});
  }

  // Whether the frame was meant for this class.
  bool TakenByClient(const ExpertFrame& frame) {
    MutexLock lock(mutex_);
    if (state_ == State::kShared) {
      Fail(absl::InvalidArgumentError(
          "a frame came by the stream that was to come by shared memory"));
      return true;
    }
    if (state_ != State::kOffered) return false;
    // A server that does not support offers answers the frame itself.
    const absl::Status accepted =
        IsShared(frame) ? FromProtoStatus(frame.header.status())
                        : absl::UnimplementedError(
                              "the peer does not know of shared memory");
    if (accepted.ok()) {
      memory_->Withdraw();
      (void)stream_->Send(SharedFrame(absl::OkStatus()));
      Share();
      reading_ = true;
      StartThread();
    } else {
      LogSocket(accepted);
      state_ = State::kSocket;
      memory_ = nullptr;
    }
    if (finishing_) BeginFinish();
    return IsShared(frame);
  }

  bool TakenByServer(ExpertFrame& frame) {
    MutexLock lock(mutex_);
    if (state_ == State::kNew) {
      state_ = State::kSocket;
      if (frame.header.has_offer()) Answer(frame.header.offer());
      frame.header.clear_offer();
      return false;
    }
    if (state_ != State::kShared) return false;
    if (reading_) {
      Fail(absl::InvalidArgumentError(
          "a frame came by the stream that was to come by shared memory"));
      return true;
    }
    if (!IsShared(frame)) return false;
    reading_ = true;
    RingBell(memory_->words(memory_->party()));
    return true;
  }

  void Answer(const v1::SharedMemoryOffer& offer)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    auto memory = SharedMemory::Open(offer, sharing_.account);
    (void)stream_->Send(SharedFrame(memory.status()));
    if (!memory.ok()) return;
    memory_ = *std::move(memory);
    Share();
    StartThread();
  }

  void Share() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    state_ = State::kShared;
    by_ring_ = true;
    writer_ = std::make_unique<SharedRingWriter>(*memory_);
    ring_ = std::make_unique<SharedRingReader>(*memory_);
    reader_ = std::make_unique<FrameReader>(ring_.get(), options_.frame_limits);
  }

  // Announces that no frame follows. A server does so by the stream, after its
  // last frame. A client does so in the ring; the server then ends the stream
  // once it has read everything.
  void BeginFinish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!by_ring_) return stream_->Finish(finish_status_);
    if (client_) return Queue();
    Write();
  }

  // Writes what there is room for, and leaves the rest to the thread.
  template <typename... Frame>
  void Queue(Frame&&... frame) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (queue_.empty()) moved_ = Clock::now();
    queued_bytes_ += queue_.emplace_back(std::forward<Frame>(frame)...).bytes();
    Write();
    if (!queue_.empty()) RingBell(memory_->words(memory_->party()));
  }

  // Returns whether anything was written.
  bool Write() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    bool moved = false;
    while (!queue_.empty()) {
      const size_t before = queue_.front().left();
      const absl::StatusOr<bool> done = queue_.front().WriteTo(*writer_);
      if (!done.ok()) {
        Fail(done.status());
        return false;
      }
      moved = moved || queue_.front().left() < before;
      if (!*done) break;
      queued_bytes_ -= queue_.front().bytes();
      queue_.pop_front();
    }
    if (moved) moved_ = Clock::now();
    if (queue_.empty() && finishing_ && !client_ && !told_) {
      told_ = true;
      stream_->Finish(finish_status_);
    }
    return moved;
  }

  // Ends the stream. The handler will get `error`.
  void Fail(const absl::Status& error) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (over_) return;
    over_ = true;
    error_ = error;
    queue_.clear();
    stopping_ = true;
    if (client_) {
      stream_->Cancel();
    } else {
      stream_->Finish(error);
    }
  }

  void StartThread() {
    thread_ = std::thread([this] { Run(); });
  }

  void StopThread() {
    if (!thread_.joinable()) return;
    stopping_ = true;
    {
      MutexLock lock(ended_mutex_);
      do {
        RingBell(memory_->words(memory_->party()));
      } while (!ended_changed_.WaitFor(lock, kWakeInterval,
                                       [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(
                                           ended_mutex_) { return ended_; }));
    }
    thread_.join();
  }

  void Run() {
    SharedMemory::Words& words = memory_->words(memory_->party());
    while (!stopping_) {
      const uint32_t heard = words.bell;
      bool moved = reading_ && Read();
      bool waiting = false;
      Clock::time_point since;
      {
        MutexLock lock(mutex_);
        moved = (!queue_.empty() && Write()) || moved;
        waiting = !queue_.empty();
        since = moved_;
      }
      if (moved || stopping_) continue;
      std::optional<std::chrono::milliseconds> most;
      if (waiting) {
        most = sharing_.patience -
               std::chrono::duration_cast<std::chrono::milliseconds>(
                   Clock::now() - since);
        if (most->count() <= 0) {
          MutexLock lock(mutex_);
          Fail(absl::UnavailableError(absl::StrCat(
              "the peer has taken nothing for ", sharing_.patience.count(),
              " ms, ", queued_bytes_, " bytes wait for it")));
          continue;
        }
      }
      AnnounceSleep(words, waiting ? kWantsBytes | kWantsRoom : kWantsBytes);
      if (!HasWork(waiting)) SleepUntilRung(words, heard, most);
      words.wants = 0;
    }
    MutexLock lock(ended_mutex_);
    ended_ = true;
    ended_changed_.NotifyAll();
  }

  // Passes available frames to the handler, a few at a time. Returns whether
  // bytes were read.
  bool Read() {
    const uint64_t before = ring_->count();
    for (int i = 0; i < kFramesInTurn && !stopping_; ++i) {
      absl::StatusOr<std::optional<ExpertFrame>> frame = reader_->Next();
      if (!frame.ok()) {
        MutexLock lock(mutex_);
        Fail(frame.status());
        return false;
      }
      if (!frame->has_value()) break;
      handler_->OnMessage(**std::move(frame));
    }
    if (reader_->ended() && !finished_) {
      finished_ = true;
      if (!client_) Finish(absl::OkStatus());
    }
    return ring_->count() != before;
  }

  // The last check before sleeping; errors are left to the next turn.
  bool HasWork(bool waiting) {
    if (stopping_) return true;
    if (reading_ && !reader_->ended()) {
      const absl::StatusOr<size_t> available = ring_->Available();
      if (!available.ok() || *available > 0) return true;
    }
    if (!waiting) return false;
    MutexLock lock(mutex_);
    const absl::StatusOr<size_t> room = writer_->Room();
    return !room.ok() || *room > 0;
  }

  // Reads what the peer had written before it ended the stream, at most one
  // ring.
  absl::Status Drain() {
    {
      MutexLock lock(mutex_);
      if (!error_.ok()) return error_;
    }
    const uint64_t begin = ring_->count();
    while (ring_->count() - begin <= sharing_.ring_bytes) {
      ASSIGN_OR_RETURN(std::optional<ExpertFrame> frame, reader_->Next());
      if (!frame.has_value()) break;
      handler_->OnMessage(*std::move(frame));
    }
    return absl::OkStatus();
  }

  const std::shared_ptr<Sender> stream_;
  const bool client_;
  const SharingOptions sharing_;
  const StreamOptions options_;
  Handler* handler_ = nullptr;

  // Set before the thread starts.
  std::unique_ptr<SharedMemory> memory_;
  std::unique_ptr<SharedRingReader> ring_;
  std::unique_ptr<FrameReader> reader_;

  Mutex mutex_;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kNew;
  // Whether frames for the peer go through the ring.
  bool by_ring_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<SharedRingWriter> writer_ ABSL_GUARDED_BY(mutex_);
  std::deque<FrameWriter> queue_ ABSL_GUARDED_BY(mutex_);
  size_t queued_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // When bytes were last written, or a frame began to wait.
  Clock::time_point moved_ ABSL_GUARDED_BY(mutex_);
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status finish_status_ ABSL_GUARDED_BY(mutex_);
  bool told_ ABSL_GUARDED_BY(mutex_) = false;  // the stream was finished
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);

  // Whether the peer's frames arrive in the ring; never reset.
  std::atomic<bool> reading_ = false;
  bool finished_ = false;  // the peer has announced its end; used by the thread
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
  Mutex ended_mutex_;
  CondVar ended_changed_;
  bool ended_ ABSL_GUARDED_BY(ended_mutex_) = false;
};

// Passes the stream's events to SharedStream, and owns the actual handler.
class SharedHandler final : public Handler {
 public:
  SharedHandler(std::shared_ptr<SharedStream> stream,
                std::unique_ptr<Handler> handler)
      : stream_(std::move(stream)), handler_(std::move(handler)) {
    stream_->SetHandler(handler_.get());
  }

  void OnMessage(ExpertFrame frame) override {
    stream_->OnMessage(std::move(frame));
  }
  void OnEnd(const absl::Status& status) override {
    handler_->OnEnd(stream_->OnEnd(status));
  }

 private:
  const std::shared_ptr<SharedStream> stream_;
  const std::unique_ptr<Handler> handler_;
};

FrameHandlerFactory Wrap(FrameHandlerFactory factory, bool client,
                         const SharingOptions& sharing,
                         const StreamOptions& options) {
  if (sharing.account.free() + sharing.account.used() == 0) return factory;
  return [=](std::shared_ptr<Sender> sender) {
    auto stream = std::make_shared<SharedStream>(std::move(sender), client,
                                                 sharing, options);
    auto handler = factory(stream);
    return std::make_unique<SharedHandler>(std::move(stream),
                                           std::move(handler));
  };
}

}  // namespace

FrameHandlerFactory OfferSharedMemory(FrameHandlerFactory factory,
                                      const SharingOptions& sharing,
                                      const StreamOptions& options) {
  return Wrap(std::move(factory), /*client=*/true, sharing, options);
}

FrameHandlerFactory AcceptSharedMemory(FrameHandlerFactory factory,
                                       const SharingOptions& sharing,
                                       const StreamOptions& options) {
  return Wrap(std::move(factory), /*client=*/false, sharing, options);
}

}  // namespace gshard
