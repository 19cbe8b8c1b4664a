// DenseParameters: the dense side of a training session: the ParameterShard of
// all dense parameters, to which routers push gradients and from which they
// pull parameters.
//
// Memory of a step: the sum, early gradients, which MicrobatchSchedule's window
// bounds, and what each router is currently pushing.

#ifndef SERVICES_COORDINATOR_TRAINING_DENSE_PARAMETERS_H_
#define SERVICES_COORDINATOR_TRAINING_DENSE_PARAMETERS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "services/base/task_queue.h"
#include "services/rpc/wire/tensor_pieces.h"
#include "services/train/parameter_shard.h"

namespace gshard {

// Thread-safe: routers push and pull while the job's thread steps.
class DenseParameters {
 public:
  // `store` holds the parameters after `step` updates. Sums are computed on
  // `sums`, which outlives this.
  DenseParameters(std::string session, std::unique_ptr<ParameterStore> store,
                  int64_t step, TaskQueue* sums);

  const std::string& session() const { return session_; }

  // Tensors that routers push, by name.
  const std::map<std::string, ExpectedTensor>& expected() const {
    return expected_;
  }

  // The parameters after `version` updates. Errors: FailedPrecondition if that
  // is not the current version.
  absl::StatusOr<NamedTensors> Pull(int64_t version) const;

  // Accepts the gradients of one microbatch: see ParameterShard::CheckAdd and
  // Add. `done` is called once they count, on the thread of `sums`; this
  // outlives that.
  absl::Status CheckPush(int64_t step, int32_t microbatch,
                         int32_t attempt) const;
  void Push(int64_t step, int32_t microbatch, int32_t attempt,
            NamedTensors gradients,
            std::function<void(const absl::Status&)> done);

  // The rest is called on the job's thread.

  // Expects the gradients of `count` microbatches of the next step, none before
  // all that precede it by `window` or more.
  void BeginStep(int32_t count, int32_t window);
  // The microbatch is assigned: from now on only this attempt may push it.
  void Expect(int32_t microbatch, int32_t attempt);
  bool HasGradients(int32_t microbatch) const { return shard_.Has(microbatch); }

  // As in ParameterShard, for the next step.
  absl::StatusOr<std::vector<SquaredNorm>> Prepare(
      absl::Span<const int32_t> attempts) {
    return shard_.Prepare(step() + 1, attempts);
  }
  absl::Status Commit(double gradient_scale, double learning_rate, bool skip) {
    return shard_.Commit(step() + 1, gradient_scale, learning_rate, skip);
  }
  int64_t step() const { return shard_.step(); }

  // The current parameters; see ParameterStore. Release them on the job's
  // thread. Without a device there is nothing that fails.
  std::vector<NamedTensor> Snapshot() const { return **shard_.TakeSnapshot(); }

 private:
  const std::string session_;
  TaskQueue* const sums_;
  ParameterShard shard_;
  std::map<std::string, ExpectedTensor> expected_;
};

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_TRAINING_DENSE_PARAMETERS_H_
