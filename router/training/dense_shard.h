// DenseShard: a router's part of the dense parameters in a training session
// whose routers sum gradients among themselves: the ParameterShard of the
// parameters that it owns, and a copy of all others.
//
// Operations that involve the other routers fail when one of them does; the
// session is then unusable, and the others learn of it by the failure.
//
// Memory, of the device if there is one: all dense parameters once, and the
// gradients of the step's microbatches that ran here, or after their sum,
// during an update, the parameters once more; sums and optimizer state of owned
// parameters; and kMaxRoundBytes for each direction of an exchange. While a
// checkpoint's shard is written, in addition what updates have replaced of it
// since; with a device, a copy of it on the host.

#ifndef ROUTER_TRAINING_DENSE_SHARD_H_
#define ROUTER_TRAINING_DENSE_SHARD_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "services/base/mutex.h"
#include "services/checkpoint/checkpoint.h"
#include "services/checkpoint/write_shard.h"
#include "services/collectives/rendezvous.h"
#include "services/train/dense_exchange.h"
#include "services/train/optimizer.h"
#include "services/train/parameter_shard.h"
#include "services/train/parameter_source.h"
#include "services/train/tensor_owners.h"

namespace gshard {

// Untrusted, except for the parameters and the optimizer.
struct DenseShardSpec {
  std::vector<ParameterSpec> parameters;  // all dense ones
  std::shared_ptr<const Optimizer> optimizer;
  int rank = 0;
  TensorOwners owners;

  ParameterSource source;
  int64_t microbatches_per_step = 0;

  size_t max_round_bytes = kMaxRoundBytes;
  // Where all tensors are, and updates computed; outlives the shard. Null: the
  // host.
  Device* device = nullptr;
};

// Thread-safe. Commands wait for one another, Abort() and WriteCheckpoint() do
// not.
class DenseShard {
 public:
  using Parameters = std::shared_ptr<const TensorMap>;

  // `rendezvous` is with the other owners. Errors: InvalidArgument if `spec` is
  // inconsistent; those of OpenToTrain and ParameterStore::Load.
  static absl::StatusOr<std::unique_ptr<DenseShard>> Create(
      DenseShardSpec spec, std::unique_ptr<Rendezvous> rendezvous);

  // See Rendezvous; call once, before the first step is prepared.
  const std::vector<std::string>& addresses() const {
    return rendezvous_->addresses();
  }
  absl::Status Connect(absl::Span<const std::string> addresses);

  // All dense parameters after `version` steps, on the device if there is one.
  // Errors: FailedPrecondition if that is not the current version.
  absl::StatusOr<Parameters> ParametersOf(int64_t version) const;

  // Keeps the gradients of a microbatch of the next step, replacing those of a
  // lower attempt; they are on the host or on the device. Errors: those of
  // ParameterShard::Begin; InvalidArgument unless the gradients match the
  // parameters; those of CopyToDevice.
  absl::Status Keep(int64_t step, int32_t microbatch, int32_t attempt,
                    GradientList gradients);

  // As ParameterShard::PrepareSums, for the owned parameters, with sums
  // computed together with the other owners. Additional errors:
  // FailedPrecondition if a microbatch that ran here has no gradient of the
  // current attempt; InvalidArgument unless the arguments have one entry per
  // microbatch; those of Communicator::Exchange and of the device.
  absl::StatusOr<std::vector<SquaredNorm>> PrepareStep(
      int64_t step, absl::Span<const int32_t> attempts,
      absl::Span<const int32_t> ran_by);

  // As ParameterShard::Commit; receives the others' updates. Additional errors:
  // those of Communicator::Exchange.
  absl::Status CommitStep(int64_t step, double gradient_scale,
                          double learning_rate, bool skip);

  // The owned parameters after `step`, for WriteCheckpoint. Must be released
  // before this is destroyed. Errors: FailedPrecondition if `step` is not the
  // last one committed; those of ParameterShard::TakeSnapshot.
  absl::StatusOr<ParameterShard::Snapshot> TakeSnapshot(int64_t step) const;

  // Writes a snapshot as a shard of a checkpoint, while steps go on. Errors:
  // those of WriteShard, which Abort() makes give up.
  absl::StatusOr<std::vector<TensorEntry>> WriteCheckpoint(
      const ShardTarget& target, const ParameterShard::Snapshot& snapshot,
      FaultPoints* faults = nullptr) const;

  // Aborts a command that waits for other routers, and so the session of all,
  // and the writing of checkpoints.
  void Abort() {
    aborted_ = true;
    rendezvous_->Abort();
  }

  // At most, if microbatches are spread evenly, and without a checkpoint's.
  int64_t memory_bytes() const { return memory_bytes_; }

 private:
  struct Kept {
    int32_t attempt = 0;
    TensorMap gradients;
  };

  DenseShard(DenseShardSpec spec, ParameterStore own, TensorMap others,
             std::unique_ptr<Rendezvous> rendezvous);

  absl::Status CheckRuns(absl::Span<const int32_t> attempts,
                         absl::Span<const int32_t> ran_by) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<GradientList> SumStep(absl::Span<const int32_t> attempts,
                                       absl::Span<const int32_t> ran_by)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Breaks the session if the device cannot go on.
  absl::Status CheckDevice(int64_t step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Notifies the others and refuses later calls.
  absl::Status Break(int64_t step, const absl::Status& status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const DenseShardSpec spec_;
  std::vector<NamedShape> shapes_;  // shapes of spec_.parameters
  int64_t memory_bytes_;
  const std::unique_ptr<Rendezvous> rendezvous_;
  std::atomic<bool> aborted_ = false;
  // Set once connected.
  std::unique_ptr<DenseExchange> exchange_ ABSL_GUARDED_BY(mutex_);

  mutable Mutex mutex_;
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);
  ParameterShard own_ ABSL_GUARDED_BY(mutex_);
  Parameters parameters_ ABSL_GUARDED_BY(mutex_);         // all, at own_'s step
  std::map<int32_t, Kept> kept_ ABSL_GUARDED_BY(mutex_);  // by microbatch
};

}  // namespace gshard

#endif  // ROUTER_TRAINING_DENSE_SHARD_H_
