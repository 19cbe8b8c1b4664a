#include "router/batching/batch_lane.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

#include "router/admission/shedding.h"
#include "services/base/check.h"
#include "services/base/monotonic_time.h"
#include "services/base/retry_delay.h"
#include "services/rpc/wire/trace_scope.h"

namespace gshard {

using Clock = std::chrono::steady_clock;

namespace {

// Time in which workers complete some of their queued calls.
constexpr std::chrono::milliseconds kFullDelay{100};

// An error with a retry delay.
absl::Status Refusal(const absl::Status& status) {
  return RetryDelay(status).has_value() ? status
                                        : WithRetryDelay(status, kFullDelay);
}

}  // namespace

BatchLane::BatchLane(std::shared_ptr<TranslationModel> model,
                     const BatchLimits& limits, RouterMetrics metrics)
    : model_(std::move(model)), limits_(limits), metrics_(std::move(metrics)) {}

WaitingSentence BatchLane::Remove(uint64_t id) {
  const auto found = sentences_.find(id);
  CHECK(found != sentences_.end());
  WaitingSentence waiting = std::move(found->second);
  sentences_.erase(found);
  load_.Remove(waiting);
  return waiting;
}

RoundResult BatchLane::Round(const std::vector<uint64_t>& leaving,
                             std::vector<JoiningItem> joining,
                             const BatchRun& run, RoundTraces traces) {
  const Clock::time_point start = Clock::now();
  RoundResult result;
  for (const uint64_t id : leaving) {
    Remove(id);
    batch_->Leave(id);
  }
  if (!joining.empty()) {
    Join(std::move(joining), run, std::move(traces.encode), result);
  }
  result.step_start = Clock::now();
  const TraceScope scope(std::move(traces.decode));
  if (!sentences_.empty()) Step(run, result);
  result.seconds = SecondsSince(start);
  return result;
}

void BatchLane::Join(std::vector<JoiningItem> joining, const BatchRun& run,
                     std::vector<OpenSpan> spans, RoundResult& result) {
  const Clock::time_point start = Clock::now();
  const TraceScope scope(ContextsOf(spans));
  std::vector<JoiningSentence> sentences;
  for (const JoiningItem& item : joining) {
    sentences.push_back({.id = item.id, .sentence = item.sentence});
  }
  if (batch_ == nullptr) batch_ = model_->NewBatch(limits_.max_positions);
  const absl::Status status = batch_->Join(sentences, run);
  metrics_.encode_seconds.Observe(SecondsSince(start), CurrentSampledId());
  for (OpenSpan& span : spans) span.End(status);
  if (!status.ok()) {
    std::vector<WaitingSentence> failed;
    for (JoiningItem& item : joining) failed.push_back(std::move(item.waiting));
    return Fail(std::move(failed), status, result);
  }
  for (JoiningItem& item : joining) {
    metrics_.queue_seconds.Observe(
        std::chrono::duration<double>(start - item.waiting.queued_since)
            .count(),
        item.trace_id);
    load_.Add(item.waiting);
    load_.Encode(item.waiting);
    sentences_[item.id] = std::move(item.waiting);
  }
}

void BatchLane::Fail(std::vector<WaitingSentence> sentences,
                     const absl::Status& status, RoundResult& result) {
  const bool full = absl::IsResourceExhausted(status);
  // What is too much together may have room apart. Alone, a request has what
  // the error says: without a delay, never.
  const bool alone = std::all_of(
      sentences.begin(), sentences.end(), [&](const WaitingSentence& waiting) {
        return waiting.request == sentences[0].request;
      });
  const std::set<uint64_t> shed =
      full ? RequestsToShed(sentences) : std::set<uint64_t>();
  for (WaitingSentence& waiting : sentences) {
    const bool again = full && !shed.contains(waiting.request);
    result.outcomes.push_back(
        {.waiting = std::move(waiting),
         .result = full && !alone ? Refusal(status) : status,
         .again = again});
  }
}

void BatchLane::Step(const BatchRun& run, RoundResult& result) {
  const Clock::time_point start = Clock::now();
  const int64_t rows = batch_->rows();
  metrics_.batch_rows.Observe(static_cast<double>(rows));
  const absl::Status status = batch_->Step(run);
  metrics_.decode_seconds.Observe(SecondsSince(start), CurrentSampledId());
  if (!status.ok()) {
    batch_ = nullptr;
    std::vector<WaitingSentence> failed;
    while (!sentences_.empty()) {
      failed.push_back(Remove(sentences_.begin()->first));
    }
    return Fail(std::move(failed), status, result);
  }
  result.rows = rows;
  load_.Step(limits_);
  for (auto& [id, waiting] : sentences_) ++waiting.rounds;
  for (FinishedSentence& finished : batch_->TakeFinished()) {
    result.outcomes.push_back({Remove(finished.id),
                               std::move(finished.hypotheses), finished.steps,
                               finished.row_cost});
  }
}

}  // namespace gshard
