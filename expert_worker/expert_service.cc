#include "expert_worker/expert_service.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "expert_worker/replica_upload.h"
#include "services/base/log.h"
#include "services/base/log_budget.h"
#include "services/base/status_macros.h"
#include "services/base/thread_priority.h"
#include "services/rpc/wire/status.h"
#include "services/rpc/wire/trace_scope.h"

namespace gshard {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

// Longer than any router's deadline.
constexpr int64_t kMaxTimeoutMs = 3'600'000;

constexpr int64_t kFailureLinesPerSecond = 5;

// No segment of a translation takes that long, unless what computes hangs.
constexpr std::chrono::seconds kBlocked{10};

constexpr char kRun[] = "/gshard.v1.ExpertWorkerService/Run";

// How long routers may take to read their last replies.
constexpr std::chrono::milliseconds kFinishTimeout{5'000};

ExpertFrame ReplyFrame(uint64_t call_id, const absl::Status& status) {
  ExpertFrame frame;
  frame.header.set_kind(v1::ExpertFrameHeader::REPLY);
  frame.header.set_call_id(call_id);
  *frame.header.mutable_status() = ToProtoStatus(status);
  return frame;
}

absl::StatusOr<TensorMap> NamedInputs(ExpertFrame& frame) {
  TensorMap inputs;
  for (size_t i = 0; i < frame.tensors.size(); ++i) {
    const std::string& name = frame.header.tensors(i).name();
    if (name.empty() || inputs.contains(name)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor ", i, ": expected a name of its own, got '", name, "'"));
    }
    inputs[name] = std::move(frame.tensors[i]);
  }
  frame.tensors.clear();
  return inputs;
}

// Rows of the float operands: R.
int64_t CountRows(const std::vector<Tensor>& tensors) {
  int64_t rows = 0;
  for (const Tensor& tensor : tensors) {
    const bool is_float = tensor.type() == ElementType::kFloat32 ||
                          tensor.type() == ElementType::kBFloat16;
    if (is_float && tensor.rank() >= 1 && tensor.size() > 0) {
      rows = std::max(rows, tensor.dim(0));
    }
  }
  return rows;
}

// Spans in the valid traces of the header.
std::vector<OpenSpan> SpansOf(const v1::ExpertFrameHeader& header,
                              const Tracer& tracer) {
  std::vector<OpenSpan> spans;
  for (const std::string& parent : header.traceparents()) {
    if (spans.size() == kMaxScopeTraces) break;
    if (ParseTraceparent(parent).trace_id.empty()) continue;
    spans.push_back(tracer.Serve(parent, "", ""));
    spans.back().SetMethod(kRun);
  }
  return spans;
}

double Seconds(microseconds duration) { return duration.count() * 1e-6; }

WorkQueueOptions ServedQueue(WorkQueueOptions options) {
  options.niceness = 0;
  return options;
}

}  // namespace

// State of one router's stream.
struct ExpertService::Stream {
  uint64_t id = 0;
  std::shared_ptr<StreamSender<ExpertFrame>> sender;
  std::atomic<bool> ended = false;
  Mutex mutex;
  std::set<uint64_t> unanswered ABSL_GUARDED_BY(mutex);
};

struct ExpertService::Call {
  std::shared_ptr<Stream> stream;
  uint64_t id = 0;
  SessionTable::Lease session;
  bool training = false;
  SegmentRun run;
  TensorMap inputs;
  int64_t rows = 0;
  std::vector<OpenSpan> spans;
};

class ExpertService::FrameReader final : public StreamHandler<ExpertFrame> {
 public:
  FrameReader(ExpertService* service, std::shared_ptr<Stream> stream)
      : service_(service), stream_(std::move(stream)) {}

  void OnMessage(ExpertFrame frame) override {
    service_->OnFrame(stream_, std::move(frame));
  }
  void OnEnd(const absl::Status&) override { service_->OnStreamEnd(*stream_); }

 private:
  ExpertService* const service_;
  const std::shared_ptr<Stream> stream_;
};

// Debug lines, and a few warnings of failed calls.
void ExpertService::LogCall(const Call& call, const absl::Status& status,
                            microseconds ran) {
  static LogBudget& budget = *new LogBudget(kFailureLinesPerSecond);
  if (status.ok() || absl::IsCancelled(status)) {
    return Log(LogSeverity::kDebug, "ran a segment",
               {{"segment", call.run.segment},
                {"rows", call.rows},
                {"cancelled", !status.ok()},
                {"run_micros", ran.count()}});
  }
  const auto left_out = budget.Take();
  if (!left_out.has_value()) return;
  LogWarning("a call failed", {{"segment", call.run.segment},
                               {"status", status},
                               {"lines_left_out", *left_out}});
}

ExpertService::ExpertService(SessionTable* sessions,
                             ExpertServiceOptions options,
                             WorkerMetrics metrics)
    : sessions_(sessions),
      options_(std::move(options)),
      metrics_(std::move(metrics)),
      served_(ServedQueue(options_.queue)),
      training_(options_.queue) {
  background_.Post([niceness = options_.queue.niceness] { BeNice(niceness); });
}

ExpertService::~ExpertService() = default;

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* ExpertService::Run(
    grpc::CallbackServerContext* context) {
  const auto make_reader =
      [this](std::shared_ptr<StreamSender<ExpertFrame>> sender) {
        auto stream = std::make_shared<Stream>();
        stream->sender = std::move(sender);
        MutexLock lock(mutex_);
        stream->id = ++last_stream_;
        streams_[stream->id] = stream;
        return std::make_unique<FrameReader>(this, std::move(stream));
      };
  return ServeStream<ExpertFrame, ExpertFrame>(
      context,
      AcceptSharedMemory(make_reader, options_.sharing, options_.stream),
      options_.stream);
}

grpc::ServerReadReactor<grpc::ByteBuffer>* ExpertService::ReplicateGradients(
    grpc::CallbackServerContext* context, grpc::ByteBuffer* response) {
  return ServeUpload<TensorFrame, v1::ReplicateGradientsResponse>(
      context, response,
      std::make_unique<ReplicaUpload>(sessions_, &background_),
      options_.stream.frame_limits);
}

void ExpertService::OnFrame(const std::shared_ptr<Stream>& stream,
                            ExpertFrame frame) {
  if (finishing_) {
    // The router has not yet noticed the shutdown.
    stream->sender->Finish(ShuttingDown());
    return;
  }
  const uint64_t call_id = frame.header.call_id();
  switch (frame.header.kind()) {
    case v1::ExpertFrameHeader::CANCEL:
      served_.Cancel(stream->id, call_id);
      training_.Cancel(stream->id, call_id);
      return;
    case v1::ExpertFrameHeader::PING:
      (void)stream->sender->Send(
          ReplyFrame(call_id, PingStatus(frame.header.session())));
      return;
    case v1::ExpertFrameHeader::RUN:
      break;
    default:
      stream->sender->Finish(absl::InvalidArgumentError(absl::StrCat(
          "kind: expected RUN, PING or CANCEL, got ", frame.header.kind())));
      return;
  }
  {
    MutexLock lock(stream->mutex);
    if (!stream->unanswered.insert(call_id).second) {
      // The replies would be ambiguous.
      stream->sender->Finish(absl::InvalidArgumentError(
          absl::StrCat("call_id ", call_id, " has no reply yet")));
      return;
    }
  }
  const absl::Status accepted = Accept(stream, std::move(frame));
  if (!accepted.ok()) Reply(*stream, ReplyFrame(call_id, accepted));
}

absl::Status ExpertService::PingStatus(const std::string& session) {
  // Else a router would try, again and again, a worker that refuses calls, or
  // wait for one that answers none.
  if (refusing_) return ShuttingDown();
  const microseconds blocked = served_.blocked();
  if (blocked < kBlocked) {
    blocked_ = false;
    return sessions_->Find(session).status();
  }
  const auto seconds =
      std::chrono::duration_cast<std::chrono::seconds>(blocked).count();
  if (!blocked_.exchange(true)) {
    LogError("translations are blocked: their segments do not end",
             {{"seconds", seconds}});
  }
  return absl::UnavailableError(absl::StrCat(
      "the worker's threads have been running the same segments for ", seconds,
      " s"));
}

absl::Status ExpertService::Accept(const std::shared_ptr<Stream>& stream,
                                   ExpertFrame frame) {
  const v1::ExpertFrameHeader& header = frame.header;
  if (header.timeout_ms() < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "timeout_ms: expected at least 1, got ", header.timeout_ms()));
  }
  const auto call = std::make_shared<Call>();
  call->stream = stream;
  call->id = header.call_id();
  ASSIGN_OR_RETURN(call->session, sessions_->Find(header.session()));
  call->run = {.segment = header.segment(),
               .step = header.step(),
               .microbatch = header.microbatch(),
               .attempt = header.attempt(),
               .owner = stream->id};
  call->rows = CountRows(frame.tensors);
  const size_t bytes = PayloadBytes(frame.tensors);
  ASSIGN_OR_RETURN(call->inputs, NamedInputs(frame));
  call->training = call->session.session().training() != nullptr;
  WorkQueue& queue = call->training ? training_ : served_;
  call->spans = SpansOf(header, options_.tracer);
  const bool brief = call->session.session().IsBrief(call->rows);
  const absl::Status queued = queue.Add(
      {.stream = stream->id,
       .call_id = call->id,
       .bytes = bytes,
       .deadline =
           options_.queue.now() + std::chrono::milliseconds(std::min(
                                      header.timeout_ms(), kMaxTimeoutMs)),
       .run = [this, call](
                  const absl::Status& status,
                  microseconds waited) { RunCall(*call, status, waited); }},
      brief);
  if (!queued.ok()) {
    for (OpenSpan& span : call->spans) span.End(queued);
    return queued;
  }
  metrics_.received_bytes.Increment(bytes);
  return absl::OkStatus();
}

void ExpertService::RunCall(Call& call, const absl::Status& status,
                            microseconds waited) {
  const TraceScope trace_scope(ContextsOf(call.spans));
  const WorkerMetrics::CallSeconds& seconds =
      metrics_.call_seconds[call.training];
  seconds.queue.Observe(Seconds(waited), CurrentSampledId());
  Stream& stream = *call.stream;
  absl::StatusOr<std::vector<Tensor>> replies =
      absl::CancelledError("the session or the stream has ended");
  microseconds ran{0};
  if (!status.ok()) {
    replies = status;
  } else if (!call.session.aborted() && !stream.ended) {
    // Before the reply, so that its receiver finds the rows counted.
    rows_ += call.rows;
    metrics_.rows.Increment(call.rows);
    const Clock::time_point begin = Clock::now();
    replies =
        call.session.session().RunSegment(call.run, std::move(call.inputs));
    ran = std::chrono::duration_cast<microseconds>(Clock::now() - begin);
    seconds.run.Observe(Seconds(ran), CurrentSampledId());
    if (replies.ok()) call.session.session().CountRun(call.rows, ran);
    // A stream that ends later ends its runs itself.
    if (stream.ended) call.session.session().EndRuns(stream.id);
  }
  call.session = {};

  size_t bytes = 0;
  if (replies.ok()) {
    bytes = PayloadBytes(*replies);
    const size_t most = options_.stream.frame_limits.max_bytes;
    if (bytes + kHeaderAllowance > most) {
      replies = absl::ResourceExhaustedError(
          absl::StrCat("the reply takes ", bytes + kHeaderAllowance,
                       " bytes, a frame at most ", most));
    }
  }
  LogCall(call, replies.status(), ran);
  for (OpenSpan& span : call.spans) {
    span.Set("gshard.rows", call.rows);
    span.Set("gshard.queue_micros", waited.count());
    span.End(replies.status());
  }
  ExpertFrame frame = ReplyFrame(call.id, replies.status());
  frame.header.set_queue_micros(waited.count());
  frame.header.set_run_micros(ran.count());
  if (replies.ok()) {
    metrics_.sent_bytes.Increment(bytes);
    for (size_t i = 0; i < replies->size(); ++i) {
      frame.Add(absl::StrCat(i), std::move((*replies)[i]));
    }
  }
  Reply(stream, std::move(frame));
}

void ExpertService::Reply(Stream& stream, ExpertFrame frame) {
  {
    MutexLock lock(stream.mutex);
    stream.unanswered.erase(frame.header.call_id());
  }
  const auto code = static_cast<absl::StatusCode>(frame.header.status().code());
  (code == absl::StatusCode::kOk
       ? metrics_.ok_calls
       : metrics_.calls.With({absl::StatusCodeToString(code)}))
      .Increment();
  const absl::Status sent = stream.sender->Send(std::move(frame));
  // Other errors mean that the stream has ended, which the router knows.
  if (absl::IsResourceExhausted(sent)) stream.sender->Finish(sent);
}

void ExpertService::OnStreamEnd(Stream& stream) {
  stream.ended = true;
  served_.CancelStream(stream.id);
  training_.CancelStream(stream.id);
  // It waits for a sum of gradients, as gRPC's threads must not.
  background_.Post([this, id = stream.id] {
    sessions_->ForEach([id](const std::string&, WorkerSession& session) {
      session.EndRuns(id);
    });
    MutexLock lock(mutex_);
    streams_.erase(id);
    stream_ended_.NotifyAll();
  });
}

void ExpertService::FinishAccepted(std::chrono::milliseconds grace) {
  refusing_ = true;
  std::thread training([this, grace] { training_.Finish(grace); });
  served_.Finish(grace);
  training.join();
  finishing_ = true;
  MutexLock lock(mutex_);
  for (const auto& [id, stream] : streams_) {
    stream->sender->Finish(ShuttingDown());
  }
  // A server that stops earlier would drop replies in flight.
  stream_ended_.WaitFor(lock, kFinishTimeout,
                        [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                          return streams_.empty();
                        });
}

int ExpertService::streams() const {
  MutexLock lock(mutex_);
  return static_cast<int>(streams_.size());
}

}  // namespace gshard
