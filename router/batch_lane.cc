#include "router/batch_lane.h"

#include <chrono>
#include <utility>

#include "services/base/check.h"

namespace gshard {

using Clock = std::chrono::steady_clock;

namespace {

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
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
  --load_.sentences;
  load_.rows -= waiting.cost.rows;
  load_.positions -= waiting.cost.positions;
  return waiting;
}

RoundResult BatchLane::Round(const std::vector<uint64_t>& leaving,
                             std::vector<JoiningItem> joining,
                             const BatchRun& run) {
  const Clock::time_point start = Clock::now();
  RoundResult result;
  for (const uint64_t id : leaving) {
    Remove(id);
    batch_->Leave(id);
  }
  if (!joining.empty()) Join(std::move(joining), run, result);
  if (!sentences_.empty()) Step(run, result);
  result.seconds = SecondsSince(start);
  return result;
}

void BatchLane::Join(std::vector<JoiningItem> joining, const BatchRun& run,
                     RoundResult& result) {
  const Clock::time_point start = Clock::now();
  std::vector<JoiningSentence> sentences;
  for (const JoiningItem& item : joining) {
    sentences.push_back({.id = item.id, .sentence = item.sentence});
    metrics_.queue_seconds.Observe(
        std::chrono::duration<double>(start - item.waiting.arrival).count());
  }
  if (batch_ == nullptr) batch_ = model_->NewBatch(limits_.max_positions);
  const absl::Status status = batch_->Join(sentences, run);
  metrics_.encode_seconds.Observe(SecondsSince(start));
  for (JoiningItem& item : joining) {
    if (!status.ok()) {
      result.outcomes.push_back({.waiting = std::move(item.waiting),
                                 .result = status,
                                 .joined = false});
      continue;
    }
    ++load_.sentences;
    load_.rows += item.waiting.cost.rows;
    load_.positions += item.waiting.cost.positions;
    sentences_[item.id] = std::move(item.waiting);
  }
}

void BatchLane::Step(const BatchRun& run, RoundResult& result) {
  const Clock::time_point start = Clock::now();
  const int64_t rows = batch_->rows();
  metrics_.batch_rows.Observe(static_cast<double>(rows));
  const absl::Status status = batch_->Step(run);
  metrics_.decode_seconds.Observe(SecondsSince(start));
  if (!status.ok()) {
    batch_ = nullptr;
    while (!sentences_.empty()) {
      result.outcomes.push_back({Remove(sentences_.begin()->first), status});
    }
    return;
  }
  result.rows = rows;
  for (auto& [id, waiting] : sentences_) ++waiting.rounds;
  for (FinishedSentence& finished : batch_->TakeFinished()) {
    result.outcomes.push_back({Remove(finished.id),
                               std::move(finished.hypotheses), finished.steps,
                               finished.row_cost});
  }
}

}  // namespace gshard
