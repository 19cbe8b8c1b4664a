// ParameterShard: some of a model's parameters, with their optimizer state, on
// the process that updates them. A step is a transaction:
//
//   Begin, Add    gradients of every microbatch, summed in microbatch order
//   Prepare       completes the sum; returns the gradients' squared norms
//   Commit        makes the update, or only counts it
//
// Until Commit a step leaves the parameters unchanged, and Prepare and Commit
// may be repeated. A worker holds one shard of its experts and one of those
// that it replicates, a router one of the dense parameters that it owns, and
// the coordinator one of all dense parameters. Some shards get sums that were
// computed elsewhere: these use PrepareSums, and add nothing.
//
// All tensors are where the store is, on a device or on the host. If the device
// fails during a sum or an update, or the host has no memory for it, the shard
// cannot be used any more: see status().
//
// Memory: parameters and optimizer state, a second copy of them while a
// snapshot holds the previous ones; the sum; and the gradients of at most
// `window` - 1 microbatches that arrive early.

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
  // as services/checkpoint/write_shard.h requires; its deleter ensures this.
  using Snapshot = std::shared_ptr<const std::vector<NamedTensor>>;

  // `store` holds its values after `step` steps. BeginStep must be called
  // before any microbatch begins.
  ParameterShard(ParameterStore store, int64_t step);

  // The next step, and all following ones, have `microbatches` microbatches. A
  // microbatch is added only when all those `window` or more before it have
  // been added. Drops gradients that were already added. REQUIRES: both at
  // least 1.
  void BeginStep(int32_t microbatches, int32_t window);

  // Attempt `attempt` of `microbatch` has started; gradients of lower attempts
  // no longer count. Idempotent. Errors: FailedPrecondition if `step` is not
  // the successor of the last committed step, is already prepared, or has seen
  // a higher attempt of this microbatch; InvalidArgument if there is no such
  // microbatch or attempt.
  absl::Status Begin(int64_t step, int32_t microbatch, int32_t attempt);

  // OK, or the reason why the shard cannot continue, see above: every later
  // step then returns this error, and the parameters may not be those of any
  // step.
  absl::Status status() const;

  // Adds the gradients of a microbatch, which may be on the host or on the
  // device. Idempotent per microbatch: all attempts have the same gradients.
  // Errors: those of CheckAdd; InvalidArgument unless they have the names and
  // shapes of shapes(); ResourceExhausted if the microbatch is `window` or more
  // ahead of next().
  absl::Status Add(int64_t step, int32_t microbatch, int32_t attempt,
                   GradientList gradients);

  // Whether Add may be called. Errors: those of Begin; FailedPrecondition
  // unless the attempt is the current one.
  absl::Status CheckAdd(int64_t step, int32_t microbatch,
                        int32_t attempt) const;

  // Whether the current attempt of `microbatch` has been added. REQUIRES, here
  // and below: BeginStep has been called.
  bool Has(int32_t microbatch) const;
  // The lowest microbatch that is not in the sum yet.
  int64_t next() const;

  // Completes the sum of `step`, where attempts[i] is the current attempt of
  // microbatch i. Repeated calls return the same. Errors: FailedPrecondition if
  // `step` is not the successor of the last committed step, was prepared with
  // other attempts, or lacks one of these; InvalidArgument unless there is one
  // attempt per microbatch.
  absl::StatusOr<std::vector<SquaredNorm>> Prepare(
      int64_t step, absl::Span<const int32_t> attempts);

  // The same with sums that are computed elsewhere: calls `make` unless the
  // step is prepared already. `of` identifies the inputs of the sums. Errors:
  // FailedPrecondition if `step` is not the successor of the last committed
  // step, or was prepared with another `of`; those of `make`; InvalidArgument
  // unless its sums have the names and shapes of shapes().
  using MakeSums = std::function<absl::StatusOr<GradientList>()>;
  absl::StatusOr<std::vector<SquaredNorm>> PrepareSums(
      int64_t step, absl::Span<const int32_t> of, const MakeSums& make);

  // The sums of the prepared step, on the host. Errors: FailedPrecondition if
  // `step` is not prepared; those of CopyToHost.
  absl::StatusOr<GradientList> PreparedSums(int64_t step) const;

  // Makes update `step`, or with `skip` only counts it. Repeating it does
  // nothing. Errors without effect: FailedPrecondition unless `step` is
  // prepared or was the last one committed; InvalidArgument if a number is not
  // finite. Otherwise the error is that of status().
  absl::Status Commit(int64_t step, double gradient_scale, double learning_rate,
                      bool skip);
  // Whether Commit would succeed, to commit several shards atomically.
  absl::Status CheckCommit(int64_t step, double gradient_scale,
                           double learning_rate) const;

  int64_t step() const;  // last committed

  // Copies that share memory with the shard, on the device if there is one.
  // Later updates replace shared tensors and leave the copies unchanged.
  TensorMap tensors() const;
  // The same, if the parameters are those after `version` steps. Errors:
  // FailedPrecondition if they are not.
  absl::StatusOr<TensorMap> TensorsOf(int64_t version) const;

  // Parameters and optimizer state after step(), from which a checkpoint's
  // shard is written. The shard must outlive the snapshot. With a device it is
  // a copy on the host, made before this returns. Errors: those of status() and
  // CopyToHost.
  absl::StatusOr<Snapshot> TakeSnapshot() const;

  // The parameters held here, in order; gradients have the same shapes.
  const std::vector<NamedShape>& shapes() const { return shapes_; }

 private:
  struct Microbatch {
    int32_t attempt = -1;  // the current one; -1: none
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

  const std::vector<NamedShape> shapes_;  // those of store_
  Device* const device_;                  // that of store_; may be null
  mutable Mutex mutex_;
  ParameterStore store_ ABSL_GUARDED_BY(mutex_);
  // The error of a failed computation of norms, after which the sum is lost, or
  // of a failed update, after which the values may not be those of any step.
  absl::Status failed_ ABSL_GUARDED_BY(mutex_);
  int64_t step_ ABSL_GUARDED_BY(mutex_);  // last committed
  int32_t window_ ABSL_GUARDED_BY(mutex_) = 1;
  // The following belong to step_ + 1.
  std::shared_ptr<OrderedSum> sum_ ABSL_GUARDED_BY(mutex_);  // may be null
  std::vector<Microbatch> microbatches_ ABSL_GUARDED_BY(mutex_);
  std::optional<Prepared> prepared_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gshard

#endif  // SERVICES_TRAIN_PARAMETER_SHARD_H_
