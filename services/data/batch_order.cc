#include "services/data/batch_order.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/check.h"
#include "services/base/random.h"
#include "services/data/shuffle.h"

namespace gshard {

absl::StatusOr<BatchOrder> BatchOrder::Create(const TokenizedText& text,
                                              const BatchOrderOptions& options,
                                              EpochSampler sampler) {
  return Create(
      text.size(), [&text](int32_t i) { return text.lengths(i); }, options,
      std::move(sampler));
}

absl::StatusOr<BatchOrder> BatchOrder::Create(int32_t sentences,
                                              LengthsOf lengths,
                                              const BatchOrderOptions& options,
                                              EpochSampler sampler) {
  const std::pair<const char*, int32_t> positive[] = {
      {"tokens", options.tokens},
      {"microbatches_per_step", options.microbatches_per_step},
      {"pool", options.pool}};
  for (const auto& [name, value] : positive) {
    if (value <= 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": expected at least 1, got ", value));
    }
  }
  if (sentences == 0) {
    return absl::InvalidArgumentError("no sentences to make batches of");
  }
  for (int32_t i = 0; i < sentences; ++i) {
    const int32_t length = lengths(i).longest;
    if (length < 1 || length > options.tokens) {
      return absl::InvalidArgumentError(absl::StrCat(
          "sentence ", i, " has ", length, " pieces; expected 1 to the ",
          options.tokens, " that a microbatch holds"));
    }
  }
  return BatchOrder(options, std::move(lengths), std::move(sampler));
}

// Longest first. Second lengths alternately ascend and descend, so that they do
// not jump where the length changes. Stable, so that sentences of equal lengths
// stay shuffled.
void BatchOrder::SortByLength(absl::Span<int32_t> pool) const {
  struct Keyed {
    int64_t key;
    int32_t sentence;
  };
  std::vector<Keyed> keyed;
  keyed.reserve(pool.size());
  for (const int32_t i : pool) {
    const PairLengths lengths = lengths_(i);
    const int32_t second =
        lengths.longest % 2 == 0 ? -lengths.target : lengths.target;
    keyed.push_back({-(int64_t{lengths.longest} << 32) + second, i});
  }
  std::stable_sort(
      keyed.begin(), keyed.end(),
      [](const Keyed& a, const Keyed& b) { return a.key < b.key; });
  for (size_t i = 0; i < pool.size(); ++i) pool[i] = keyed[i].sentence;
}

std::shared_ptr<const BatchOrder::Plan> BatchOrder::MakePlan(
    int64_t epoch) const {
  const uint64_t key = FoldIn(FoldIn(options_.seed, "batch order"),
                              static_cast<uint64_t>(epoch));
  std::vector<int32_t> sentences = sampler_.Draw(epoch);
  Shuffle(FoldIn(key, "sentences"), &sentences);

  struct Range {
    int32_t begin, end;
  };
  std::vector<Range> batches;
  const auto total = static_cast<int32_t>(sentences.size());
  for (int32_t begin = 0; begin < total;) {
    const int32_t end = begin + std::min(options_.pool, total - begin);
    SortByLength(absl::MakeSpan(sentences).subspan(begin, end - begin));
    while (begin < end) {
      // The first of a batch is the longest, to which all are padded.
      const int32_t count =
          options_.tokens / lengths_(sentences[begin]).longest;
      const int32_t next = begin + std::min(count, end - begin);
      batches.push_back({begin, next});
      begin = next;
    }
  }
  Shuffle(FoldIn(key, "batches"), &batches);

  auto plan = std::make_shared<Plan>();
  plan->epoch = epoch;
  plan->sentences.reserve(sentences.size());
  plan->starts.reserve(batches.size() + 1);
  plan->starts.push_back(0);
  for (const Range& batch : batches) {
    plan->sentences.insert(plan->sentences.end(),
                           sentences.begin() + batch.begin,
                           sentences.begin() + batch.end);
    plan->starts.push_back(static_cast<int32_t>(plan->sentences.size()));
  }
  return plan;
}

std::shared_ptr<const BatchOrder::Plan> BatchOrder::GetPlan(
    int64_t epoch) const {
  for (const auto& plan : cache_->recent) {
    if (plan != nullptr && plan->epoch == epoch) return plan;
  }
  std::shared_ptr<const Plan> plan = MakePlan(epoch);
  // Adjacent epochs have different slots, for steps that straddle two epochs.
  cache_->recent[epoch % 2] = plan;
  return plan;
}

void BatchOrder::AddEpoch() const {
  std::vector<int64_t>& starts = cache_->epoch_starts;
  const auto epoch = static_cast<int64_t>(starts.size()) - 1;
  starts.push_back(starts.back() + GetPlan(epoch)->size());
}

absl::Status BatchOrder::Prepare(int64_t step,
                                 const std::stop_token& stop) const {
  CHECK(step >= 0);
  const int64_t number = step * options_.microbatches_per_step;
  MutexLock lock(cache_->mutex);
  while (cache_->epoch_starts.back() <= number) {
    if (stop.stop_requested()) {
      return absl::CancelledError(absl::StrCat("the epochs before step ", step,
                                               " have not all been planned"));
    }
    AddEpoch();
  }
  return absl::OkStatus();
}

std::shared_ptr<const BatchOrder::Plan> BatchOrder::FindPlan(
    int64_t number, int64_t* offset) const {
  std::vector<int64_t>& starts = cache_->epoch_starts;
  while (starts.back() <= number) AddEpoch();
  const int64_t epoch = std::upper_bound(starts.begin(), starts.end(), number) -
                        starts.begin() - 1;
  *offset = number - starts[epoch];
  return GetPlan(epoch);
}

std::vector<int32_t> BatchOrder::Microbatch(int64_t step,
                                            int32_t microbatch) const {
  CHECK(step >= 0 && microbatch >= 0 &&
        microbatch < options_.microbatches_per_step);
  int64_t offset = 0;
  std::shared_ptr<const Plan> plan;
  {
    MutexLock lock(cache_->mutex);
    plan =
        FindPlan(step * options_.microbatches_per_step + microbatch, &offset);
  }
  return {plan->sentences.begin() + plan->starts[offset],
          plan->sentences.begin() + plan->starts[offset + 1]};
}

int64_t BatchOrder::MicrobatchesInEpoch(int64_t epoch) const {
  CHECK(epoch >= 0);
  MutexLock lock(cache_->mutex);
  return GetPlan(epoch)->size();
}

}  // namespace gshard
