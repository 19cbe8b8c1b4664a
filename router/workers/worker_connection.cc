#include "router/workers/worker_connection.h"

#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/base/retry_delay.h"
#include "services/base/status_macros.h"
#include "services/rpc/client/client_stream.h"
#include "services/rpc/client/reaper.h"
#include "services/rpc/wire/status.h"
#include "services/rpc/wire/trace_scope.h"

namespace gshard {
namespace {

constexpr char kRun[] = "/gshard.v1.ExpertWorkerService/Run";

// Time in which a peer that reads slowly takes some of what waits for it.
constexpr std::chrono::milliseconds kSlowDelay{100};

// An error of the stream: unlike a call that is too long, a call that fails
// with it may be repeated.
absl::Status MayPass(const absl::Status& status) {
  return absl::IsResourceExhausted(status) && !RetryDelay(status).has_value()
             ? WithRetryDelay(status, kSlowDelay)
             : status;
}

}  // namespace

// One stream from its opening to its end. Shared with its reader, which may
// outlive the connection.
struct WorkerConnection::Stream {
  explicit Stream(WorkerState* state) : state(state) {}

  Mutex mutex;
  bool ended ABSL_GUARDED_BY(mutex) = false;
  WorkerState* state ABSL_GUARDED_BY(mutex);  // null once it has ended
  std::map<uint64_t, OnReply> pending ABSL_GUARDED_BY(mutex);
  std::shared_ptr<StreamSender<ExpertFrame>> sender;  // set before it is used

  // Removes a call; null if absent.
  OnReply Take(uint64_t call_id) {
    MutexLock lock(mutex);
    const auto found = pending.find(call_id);
    if (found == pending.end()) return nullptr;
    OnReply on_reply = std::move(found->second);
    pending.erase(found);
    return on_reply;
  }

  // Notifies waiting calls; no call starts on it any more. If the worker is
  // lost, it is probed, although nobody may be calling it.
  void End(const absl::Status& error) {
    std::map<uint64_t, OnReply> told;
    {
      MutexLock lock(mutex);
      ended = true;
      told.swap(pending);
      WorkerState* const of = std::exchange(state, nullptr);
      if (of != nullptr && absl::IsUnavailable(error)) {
        of->Health([](WorkerHealth& health) {
          health.OnSilence(WorkerState::Clock::now());
        });
      }
    }
    for (const auto& [id, on_reply] : told) on_reply(error);
  }
};

class WorkerConnection::ReplyReader final : public StreamHandler<ExpertFrame> {
 public:
  ReplyReader(std::string name, std::shared_ptr<Stream> stream,
              std::shared_ptr<grpc::Channel> channel)
      : name_(std::move(name)),
        stream_(std::move(stream)),
        channel_(std::move(channel)) {}

  void OnMessage(ExpertFrame frame) override {
    if (frame.header.kind() != v1::ExpertFrameHeader::REPLY) return;
    const OnReply on_reply = stream_->Take(frame.header.call_id());
    if (on_reply == nullptr) return;  // cancelled meanwhile
    const absl::Status status = FromProtoStatus(frame.header.status());
    if (status.ok()) {
      on_reply(std::move(frame.tensors));
    } else {
      on_reply(Annotate(status, name_));
    }
  }

  void OnEnd(const absl::Status& status) override {
    // A frame that is too long, or a slow router, is no fault of the worker,
    // but maybe of another call; anything else means that the worker is lost.
    stream_->End(
        absl::IsResourceExhausted(status) || absl::IsCancelled(status)
            ? Annotate(MayPass(status), name_)
            : absl::UnavailableError(absl::StrCat(
                  name_, ": the stream was lost: ",
                  status.ok() ? "the worker ended it" : status.ToString())));
    ReapChannel(std::move(channel_));
  }

 private:
  const std::string name_;
  const std::shared_ptr<Stream> stream_;
  std::shared_ptr<grpc::Channel> channel_;
};

WorkerConnection::WorkerConnection(absl::string_view name,
                                   std::shared_ptr<grpc::Channel> channel,
                                   StreamOptions options, Tracer tracer,
                                   SharingOptions sharing)
    : WorkerStub(name),
      channel_(std::move(channel)),
      options_(std::move(options)),
      tracer_(std::move(tracer)),
      sharing_(std::move(sharing)) {}

WorkerConnection::~WorkerConnection() {
  if (stream_ == nullptr) return;
  stream_->sender->Cancel();
  stream_->End(absl::CancelledError(name() + ": the connection was closed"));
}

std::shared_ptr<WorkerConnection::Stream> WorkerConnection::LiveStream() {
  if (stream_ != nullptr) {
    MutexLock lock(stream_->mutex);
    if (!stream_->ended) return stream_;
  }
  stream_ = std::make_shared<Stream>(&state());
  const auto make_reader =
      [this](std::shared_ptr<StreamSender<ExpertFrame>> sender)
          ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
            stream_->sender = std::move(sender);
            return std::make_unique<ReplyReader>(name(), stream_, channel_);
          };
  OpenStream<ExpertFrame, ExpertFrame>(
      channel_, kRun, OfferSharedMemory(make_reader, sharing_, options_),
      options_);
  return stream_;
}

uint64_t WorkerConnection::Call(WorkerCall call, OnReply on_reply) {
  ExpertFrame frame;
  v1::ExpertFrameHeader& header = frame.header;
  header.set_kind(v1::ExpertFrameHeader::RUN);
  header.set_session(call.session.data(), call.session.size());
  header.set_segment(call.segment.data(), call.segment.size());
  header.set_step(call.step);
  header.set_microbatch(call.microbatch);
  header.set_attempt(call.attempt);
  header.set_timeout_ms(call.timeout.count());
  std::vector<OpenSpan> spans;
  for (const TraceContext& trace : CurrentTraces()) {
    OpenSpan span = tracer_.Child(trace, "", SpanKind::kClient);
    header.add_traceparents(span.context().Traceparent());
    if (!span.recorded()) continue;
    span.SetMethod(kRun);
    span.Set("gshard.worker", name());
    spans.push_back(std::move(span));
  }
  if (!spans.empty()) {
    const auto shared =
        std::make_shared<std::vector<OpenSpan>>(std::move(spans));
    on_reply = [shared, on_reply = std::move(on_reply)](auto reply) {
      for (OpenSpan& span : *shared) span.End(reply.status());
      on_reply(std::move(reply));
    };
  }
  for (auto& [name, tensor] : call.inputs) frame.Add(name, std::move(tensor));
  return Send(std::move(frame), std::move(on_reply));
}

uint64_t WorkerConnection::Ping(const std::string& session, OnReply on_reply) {
  ExpertFrame frame;
  frame.header.set_kind(v1::ExpertFrameHeader::PING);
  frame.header.set_session(session);
  return Send(std::move(frame), std::move(on_reply));
}

uint64_t WorkerConnection::Send(ExpertFrame frame, OnReply on_reply) {
  const size_t bytes = PayloadBytes(frame.tensors) + kHeaderAllowance;
  const size_t limit = options_.frame_limits.max_bytes;
  std::shared_ptr<Stream> stream;
  uint64_t call_id = 0;
  {
    MutexLock lock(mutex_);
    call_id = ++last_call_id_;
    if (bytes <= limit) stream = LiveStream();
  }
  if (stream == nullptr) {
    on_reply(absl::ResourceExhaustedError(
        absl::StrCat(name(), ": a call of ", bytes,
                     " bytes is longer than a message may be, ", limit)));
    return call_id;
  }
  frame.header.set_call_id(call_id);
  {
    MutexLock lock(stream->mutex);
    stream->pending[call_id] = std::move(on_reply);
  }
  const absl::Status sent = stream->sender->Send(std::move(frame));
  if (!sent.ok()) {
    // Unless the stream's end has already notified it.
    const OnReply failed = stream->Take(call_id);
    if (failed != nullptr) failed(Annotate(MayPass(sent), name()));
  }
  return call_id;
}

void WorkerConnection::Cancel(uint64_t call_id) {
  std::shared_ptr<Stream> stream;
  {
    MutexLock lock(mutex_);
    stream = stream_;
  }
  if (stream == nullptr || stream->Take(call_id) == nullptr) return;
  ExpertFrame frame;
  frame.header.set_kind(v1::ExpertFrameHeader::CANCEL);
  frame.header.set_call_id(call_id);
  (void)stream->sender->Send(std::move(frame));
}

size_t WorkerConnection::pending() const {
  MutexLock lock(mutex_);
  if (stream_ == nullptr) return 0;
  MutexLock stream_lock(stream_->mutex);
  return stream_->pending.size();
}

WorkerConnections::WorkerConnections(ChannelOptions channel, Tracer tracer,
                                     SharingOptions sharing)
    : channel_(std::move(channel)),
      tracer_(std::move(tracer)),
      sharing_(std::move(sharing)) {}

absl::StatusOr<std::shared_ptr<WorkerConnection>> WorkerConnections::Get(
    const std::string& name, const std::string& address, int64_t incarnation) {
  MutexLock lock(mutex_);
  const auto found = connections_.find({name, address, incarnation});
  if (found != connections_.end()) return found->second;
  ASSIGN_OR_RETURN(std::shared_ptr<grpc::Channel> channel,
                   CreateChannel(address, channel_));
  StreamOptions options;
  options.frame_limits.max_bytes = channel_.max_message_bytes;
  auto connection = std::make_shared<WorkerConnection>(
      name, std::move(channel), std::move(options), tracer_, sharing_);
  connections_[{name, address, incarnation}] = connection;
  return connection;
}

void WorkerConnections::Prune() {
  std::vector<std::shared_ptr<WorkerConnection>> unused;
  MutexLock lock(mutex_);
  for (auto it = connections_.begin(); it != connections_.end();) {
    if (it->second.use_count() > 1) {
      ++it;
    } else {
      unused.push_back(std::move(it->second));
      it = connections_.erase(it);
    }
  }
}

}  // namespace gshard
