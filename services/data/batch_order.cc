#include "services/data/batch_order.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/check.h"
#include "services/base/random.h"

namespace gshard {
namespace {

// Fisher-Yates with the random numbers of `key`.
template <typename T>
void Shuffle(uint64_t key, std::vector<T>* items) {
  for (size_t i = items->size(); i > 1; --i) {
    std::swap((*items)[i - 1], (*items)[RandomBelow(key, i, i)]);
  }
}

}  // namespace

absl::StatusOr<BatchOrder> BatchOrder::Create(
    std::vector<int32_t> lengths, const BatchOrderOptions& options,
    std::vector<int32_t> second_lengths) {
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
  if (lengths.empty()) {
    return absl::InvalidArgumentError("no sentences to make batches of");
  }
  for (size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] < 1 || lengths[i] > options.tokens) {
      return absl::InvalidArgumentError(absl::StrCat(
          "sentence ", i, " has ", lengths[i], " pieces; expected 1 to the ",
          options.tokens, " that a microbatch holds"));
    }
  }
  if (!second_lengths.empty() && second_lengths.size() != lengths.size()) {
    return absl::InvalidArgumentError(absl::StrCat("second_lengths: expected ",
                                                   lengths.size(), ", got ",
                                                   second_lengths.size()));
  }
  BatchOrder order;
  order.second_lengths_ = std::move(second_lengths);
  order.lengths_ = std::move(lengths);
  order.options_ = options;
  order.cache_ = std::make_unique<Cache>();
  return order;
}

// Longest first. Second lengths go up and down in turn, so that they make no
// jump where the length changes.
bool BatchOrder::Before(int32_t i, int32_t j) const {
  if (lengths_[i] != lengths_[j]) return lengths_[i] > lengths_[j];
  if (second_lengths_.empty()) return false;
  return lengths_[i] % 2 == 0 ? second_lengths_[i] > second_lengths_[j]
                              : second_lengths_[i] < second_lengths_[j];
}

std::shared_ptr<const BatchOrder::Plan> BatchOrder::MakePlan(
    int64_t epoch) const {
  const uint64_t key = FoldIn(FoldIn(options_.seed, "batch order"),
                              static_cast<uint64_t>(epoch));
  std::vector<int32_t> sentences(lengths_.size());
  std::iota(sentences.begin(), sentences.end(), 0);
  Shuffle(FoldIn(key, "sentences"), &sentences);

  struct Range {
    int32_t begin, end;
  };
  std::vector<Range> batches;
  const auto total = static_cast<int32_t>(sentences.size());
  for (int32_t begin = 0; begin < total;) {
    const int32_t end = begin + std::min(options_.pool, total - begin);
    // Stable, so that sentences of one length stay shuffled.
    std::stable_sort(sentences.begin() + begin, sentences.begin() + end,
                     [&](int32_t i, int32_t j) { return Before(i, j); });
    while (begin < end) {
      // The first of a batch is the longest: all are padded to it.
      const int32_t count = options_.tokens / lengths_[sentences[begin]];
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

// REQUIRES: the cache is locked.
std::shared_ptr<const BatchOrder::Plan> BatchOrder::GetPlan(
    int64_t epoch) const {
  for (const auto& plan : cache_->recent) {
    if (plan != nullptr && plan->epoch == epoch) return plan;
  }
  std::shared_ptr<const Plan> plan = MakePlan(epoch);
  // Neighbours have different places, so that a step that straddles two epochs
  // finds both.
  cache_->recent[epoch % 2] = plan;
  std::vector<int64_t>& starts = cache_->epoch_starts;
  if (static_cast<int64_t>(starts.size()) == epoch + 1) {
    starts.push_back(starts.back() + plan->size());
  }
  return plan;
}

// REQUIRES: the cache is locked.
std::shared_ptr<const BatchOrder::Plan> BatchOrder::FindPlan(
    int64_t number, int64_t* offset) const {
  std::vector<int64_t>& starts = cache_->epoch_starts;
  while (starts.back() <= number) {
    GetPlan(static_cast<int64_t>(starts.size()) - 1);
  }
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
    std::lock_guard<std::mutex> lock(cache_->mutex);
    plan =
        FindPlan(step * options_.microbatches_per_step + microbatch, &offset);
  }
  return {plan->sentences.begin() + plan->starts[offset],
          plan->sentences.begin() + plan->starts[offset + 1]};
}

int64_t BatchOrder::Epoch(int64_t step) const {
  CHECK(step >= 0);
  int64_t offset = 0;
  std::lock_guard<std::mutex> lock(cache_->mutex);
  return FindPlan(step * options_.microbatches_per_step, &offset)->epoch;
}

int64_t BatchOrder::MicrobatchesInEpoch(int64_t epoch) const {
  CHECK(epoch >= 0);
  std::lock_guard<std::mutex> lock(cache_->mutex);
  return GetPlan(epoch)->size();
}

}  // namespace gshard
