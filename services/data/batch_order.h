// BatchOrder: which sentences make up microbatch m of step s.
//
// A pure function of (lengths, options, step, microbatch), whoever asks, in any
// order, with any number of routers. Every sentence occurs once per epoch,
// unless an EpochSampler says how often. An epoch is a random permutation of
// its sentences, divided into pools; a pool is sorted by length and divided
// into microbatches of at most `tokens` padded positions, which minimizes
// padding; then the microbatches of the epoch are shuffled. Microbatch m of
// step s has index s * microbatches_per_step + m in the sequence of all epochs;
// a step may straddle two epochs.
//
// Thread-safe. The plan of an epoch is made once, on first use, and two are
// cached: 4 bytes per sentence and per microbatch each; making one takes twice
// as much memory, and a second per 3 million sentences. Plans of earlier epochs
// determine where a later one starts, so starting at epoch n costs n plans,
// best made by Prepare().

#ifndef SERVICES_DATA_BATCH_ORDER_H_
#define SERVICES_DATA_BATCH_ORDER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "services/base/mutex.h"
#include "services/data/epoch_sampler.h"
#include "services/data/tokenized_text.h"

namespace gshard {

struct BatchOrderOptions {
  uint64_t seed = 1;
  // Maximum positions of a microbatch, padding included: sentences times the
  // longest.
  int32_t tokens = 2048;
  int32_t microbatches_per_step = 1;
  // Number of sentences that are sorted by length together.
  int32_t pool = 16384;
};

class BatchOrder {
 public:
  using LengthsOf = std::function<PairLengths(int32_t sentence)>;

  // The longer side counts against the budget. Sentences that are equal in that
  // are sorted by their target, which reduces its padding, too (by a seventh on
  // package titles).
  //
  // Errors: InvalidArgument for an option that is not positive, no sentences,
  // or a sentence that is longer than `tokens`.
  static absl::StatusOr<BatchOrder> Create(int32_t sentences, LengthsOf lengths,
                                           const BatchOrderOptions& options,
                                           EpochSampler sampler);

  // The order of `text`, which must outlive this; lengths are not copied.
  static absl::StatusOr<BatchOrder> Create(const TokenizedText& text,
                                           const BatchOrderOptions& options,
                                           EpochSampler sampler);

  BatchOrder(BatchOrder&&) = default;
  BatchOrder& operator=(BatchOrder&&) = default;

  // Plans the epochs up to that of `step`, for which Microbatch() then has
  // nothing to wait. Errors: Cancelled if stop is requested, which is looked at
  // between epochs. REQUIRES: step >= 0.
  absl::Status Prepare(int64_t step, const std::stop_token& stop) const;

  // Sentence indices, longest first; never empty.
  // REQUIRES: step >= 0, 0 <= microbatch < microbatches_per_step.
  std::vector<int32_t> Microbatch(int64_t step, int32_t microbatch) const;

  // Number of microbatches of an epoch; varies slightly between epochs.
  int64_t MicrobatchesInEpoch(int64_t epoch) const;

  const BatchOrderOptions& options() const { return options_; }

 private:
  // One epoch: microbatch b holds sentences [starts[b], starts[b + 1]).
  struct Plan {
    int64_t epoch;
    std::vector<int32_t> sentences;
    std::vector<int32_t> starts;
    int64_t size() const { return static_cast<int64_t>(starts.size()) - 1; }
  };
  struct Cache {
    Mutex mutex;
    // Index of the first microbatch of each epoch known so far.
    std::vector<int64_t> epoch_starts ABSL_GUARDED_BY(mutex) = {0};
    std::shared_ptr<const Plan> recent[2] ABSL_GUARDED_BY(mutex);
  };

  BatchOrder(BatchOrderOptions options, LengthsOf lengths, EpochSampler sampler)
      : options_(options),
        lengths_(std::move(lengths)),
        sampler_(std::move(sampler)),
        cache_(std::make_unique<Cache>()) {}
  void SortByLength(absl::Span<int32_t> pool) const;
  std::shared_ptr<const Plan> MakePlan(int64_t epoch) const;
  std::shared_ptr<const Plan> GetPlan(int64_t epoch) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(cache_->mutex);
  // Plans the first epoch whose start is known and whose end is not.
  void AddEpoch() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(cache_->mutex);
  std::shared_ptr<const Plan> FindPlan(int64_t number, int64_t* offset) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(cache_->mutex);

  BatchOrderOptions options_;
  LengthsOf lengths_;
  EpochSampler sampler_;
  std::unique_ptr<Cache> cache_;
};

}  // namespace gshard

#endif  // SERVICES_DATA_BATCH_ORDER_H_
