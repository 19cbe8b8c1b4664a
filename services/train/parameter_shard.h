// ParameterShard: some of a model's parameters, with their optimizer state, on
// the process that updates them. A step is a transaction:
//
//   Begin, Add    gradients of every microbatch, summed in order of these
//   Prepare       ends the sum; the squared norms of the gradients
//   Commit        makes the update, or only counts it
//
// Until Commit a step leaves the parameters as they were, and Prepare and
// Commit may be repeated. A worker holds a shard of its experts and one of
// those that it replicates, a router one of the dense parameters that it owns,
// and the coordinator one of all dense parameters. Some get sums that were made
// elsewhere: they PrepareSums, and add nothing.
//
// All of it is where the store is, on a device or on the host. If the device
// fails in a sum or an update there is nothing to go on with: see status().
//
// Memory: parameters and optimizer state, once more while a snapshot has them;
// the sum; and the gradients of at most `window` - 1 microbatches that came
// before their turn.

#ifndef SERVICES_TRAIN_PARAMETER_SHARD_H_
#define SERVICES_TRAIN_PARAMETER_SHARD_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "services/base/mutex.h"
#include "services/train/ordered_sum.h"
#include "services/train/parameter_store.h"

namespace gshard {

// Thread-safe.
class ParameterShard {
 public:
  // Tensors as they were at one moment. Must be released in order with updates,
  // as services/checkpoint/write_shard.h requires.
  using Snapshot = std::shared_ptr<const std::vector<NamedTensor>>;

  // `store` has its values, those after `step` steps. No microbatch begins
  // before BeginStep.
  ParameterShard(ParameterStore store, int64_t step);

  // The next step, and all that follow, are of `microbatches`, none of which is
  // added before all that are `window` before it. Drops what was added already.
  // REQUIRES: both at least 1.
  void BeginStep(int32_t microbatches, int32_t window);

  // Attempt `attempt` of `microbatch` has started; gradients of lower attempts
  // no longer count. Idempotent. Errors: FailedPrecondition if `step` is not
  // the one after the last, is prepared, or has seen a higher attempt;
  // InvalidArgument if there is no such microbatch or attempt.
  absl::Status Begin(int64_t step, int32_t microbatch, int32_t attempt);

  // OK, or why the device cannot go on: every step then ends with it, and the
  // parameters may be those of no step.
  absl::Status status() const;

  // Adds the gradients of a microbatch, from either memory. Idempotent per
  // microbatch: all attempts have the same gradients. Errors: those of
  // CheckAdd; InvalidArgument unless they are those of shapes();
  // ResourceExhausted if they are `window` or more before their turn.
  absl::Status Add(int64_t step, int32_t microbatch, int32_t attempt,
                   GradientList gradients);

  // Whether Add may come. Errors: those of Begin; FailedPrecondition unless the
  // attempt is the one that was begun.
  absl::Status CheckAdd(int64_t step, int32_t microbatch,
                        int32_t attempt) const;

  // Whether the attempt of `microbatch` that counts has been added. REQUIRES,
  // here and below: BeginStep.
  bool Has(int32_t microbatch) const;
  // The earliest microbatch that is not in the sum.
  int64_t next() const;

  // Ends the sum of `step`, for which attempts[i] of microbatch i counts.
  // Repeating it gives the same. Errors: FailedPrecondition if `step` is not
  // the one after the last, is prepared with other attempts, or misses one of
  // these; InvalidArgument if they are not one for each microbatch.
  absl::StatusOr<std::vector<SquaredNorm>> Prepare(
      int64_t step, absl::Span<const int32_t> attempts);

  // The same with sums that are made elsewhere: calls `make` unless the step is
  // prepared. `of` is what they are made of. Errors: FailedPrecondition if
  // `step` is not the one after the last, or is prepared of something else;
  // those of `make`; InvalidArgument unless it gives those of shapes().
  using MakeSums = std::function<absl::StatusOr<GradientList>()>;
  absl::StatusOr<std::vector<SquaredNorm>> PrepareSums(
      int64_t step, absl::Span<const int32_t> of, const MakeSums& make);

  // The sums of the step that is prepared, on the host. Errors:
  // FailedPrecondition if that is another, or none; those of CopyToHost.
  absl::StatusOr<GradientList> PreparedSums(int64_t step) const;

  // Makes update `step`, or with `skip` only counts it. Repeating it does
  // nothing. Errors, without effect: FailedPrecondition unless `step` is
  // prepared or was the last one committed; InvalidArgument if a number is not
  // finite. That of status() otherwise.
  absl::Status Commit(int64_t step, double gradient_scale, double learning_rate,
                      bool skip);
  // Whether Commit would succeed, to commit several shards atomically.
  absl::Status CheckCommit(int64_t step, double gradient_scale,
                           double learning_rate) const;

  int64_t step() const;  // committed

  // Copies that share memory, on the device if there is one: an update replaces
  // what is shared.
  TensorMap tensors() const;
  // The same, of the parameters after `version` steps. Errors:
  // FailedPrecondition if these are not the present ones.
  absl::StatusOr<TensorMap> TensorsOf(int64_t version) const;

  // Parameters and optimizer state after step(); what a checkpoint's shard is
  // written from. The shard outlives it.
  Snapshot TakeSnapshot() const;

  // What is held here, in order; gradients have the same shapes.
  const std::vector<NamedShape>& shapes() const { return shapes_; }

 private:
  struct Microbatch {
    int32_t attempt = -1;  // the one that counts; -1: none
    bool added = false;
  };
  struct Prepared {
    std::vector<int32_t> of;
    GradientList sums;
    std::vector<SquaredNorm> norms;
  };

  absl::Status CheckMicrobatch(int64_t step, int32_t microbatch,
                               int32_t attempt) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckCurrent(int64_t step, int32_t microbatch,
                            int32_t attempt) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckAttempts(absl::Span<const int32_t> attempts) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckDevice() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckPrepared(int64_t step) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ResetSum() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::vector<NamedShape> shapes_;  // of store_
  Device* const device_;                  // likewise
  mutable Mutex mutex_;
  ParameterStore store_ ABSL_GUARDED_BY(mutex_);
  // Why norms or an update could not be made, for which the sum is gone or the
  // values may be those of no step.
  absl::Status failed_ ABSL_GUARDED_BY(mutex_);
  int64_t step_ ABSL_GUARDED_BY(mutex_);  // committed
  int32_t window_ ABSL_GUARDED_BY(mutex_) = 1;
  // These are of step_ + 1.
  std::shared_ptr<OrderedSum> sum_ ABSL_GUARDED_BY(mutex_);  // may be null
  std::vector<Microbatch> microbatches_ ABSL_GUARDED_BY(mutex_);
  std::optional<Prepared> prepared_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gshard

#endif  // SERVICES_TRAIN_PARAMETER_SHARD_H_
