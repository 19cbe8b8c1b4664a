// Statistics of a microbatch, and of a step.

#ifndef SERVICES_TRAIN_STEP_STATISTICS_H_
#define SERVICES_TRAIN_STEP_STATISTICS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/status.h"

namespace gshard {

// Statistics of one MoE layer. A choice is one (token, expert) pair selected by
// the gate.
struct LayerStatistics {
  double balance_loss_sum = 0.0;  // E-scaled; a microbatch's mean over groups
  int64_t groups = 0;             // what to divide it by: 1 per microbatch
  int64_t routed_first = 0;       // choices with a slot
  int64_t routed_second = 0;
  int64_t overflow_first = 0;  // choices without a slot
  int64_t overflow_second = 0;
  std::vector<int64_t> expert_rows;  // [E]: choices routed to each expert
  double logit_magnitude = 0.0;  // largest |logsumexp| of a token's gate logits

  // Mean over microbatches; 1 is even load. 0 without, as in validation.
  double balance_loss() const;
  // Rows of the fullest expert divided by the mean; 1 is even load, E the
  // worst. 0 if there are no rows.
  double imbalance() const;
};

// Sums and maxima rather than means, so that a step's are those of its
// microbatches merged, whatever their sizes. Merge in order of index, so that
// doubles have the same bits.
struct StepStatistics {
  int64_t target_tokens = 0;
  int64_t sentences = 0;
  double loss_sum = 0.0;         // nats, "loss" of services/model/transformer.h
  double logit_magnitude = 0.0;  // largest |logsumexp| of a token's logits
  std::vector<LayerStatistics> layers;

  // Adds `other`. Errors: InvalidArgument if the numbers of layers or experts
  // differ; then nothing changes. If `layers` is empty, it becomes that of
  // `other`.
  absl::Status Merge(const StepStatistics& other);

  double loss() const;            // per target token; 0 without tokens
  double balance_loss() const;    // mean over layers; 0 without layers
  double overflow_share() const;  // [0, 1], over all layers; 0 without choices
  double gate_logit_magnitude() const;  // of the layer with the largest
};

// The merged statistics of microbatches that come in any order, such that only
// those that come early are kept.
class OrderedStatistics {
 public:
  // Adds those of microbatch `index`: to the sums once all before it are there.
  // REQUIRES: index >= 0, and not added before. Errors: those of Merge.
  absl::Status Add(int32_t index, StepStatistics statistics);

  // Of the microbatches before the first that is missing.
  const StepStatistics& sums() const { return sums_; }
  // The number of those that are kept.
  size_t num_early() const { return early_.size(); }

 private:
  StepStatistics sums_;
  int32_t next_ = 0;
  std::map<int32_t, StepStatistics> early_;
};

// The outcome of a step.
struct StepResult {
  StepStatistics statistics;
  double gradient_norm = 0.0;  // of the mean loss, before clipping
  double learning_rate = 0.0;
};

}  // namespace gshard

#endif  // SERVICES_TRAIN_STEP_STATISTICS_H_
