// Replica: what a worker keeps of another's experts, so that the loss of that
// one loses nothing. It is sent the sums of each step's gradients, and makes
// the updates that their owner makes; no parameters travel.

#ifndef EXPERT_WORKER_REPLICA_H_
#define EXPERT_WORKER_REPLICA_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "services/train/parameter_store.h"

namespace gshard {

// Take() is thread-safe; nothing else may be called at the same time.
class Replica {
 public:
  // `experts` are global ids, ascending. Values are undefined until the store
  // is initialised or loaded.
  Replica(std::vector<ParameterSpec> parameters, std::vector<int32_t> experts,
          std::shared_ptr<const Optimizer> optimizer)
      : store_(std::move(parameters), std::move(experts),
               std::move(optimizer)) {}

  ParameterStore& store() { return store_; }
  const ParameterStore& store() const { return store_; }

  // Keeps the sums of `step` for Commit. A step's sums count once. Errors:
  // those of ParameterStore::CheckGradients.
  absl::Status Take(int64_t step, GradientList sums);

  // Makes update `step`, or with `skip` only drops its sums. Errors:
  // FailedPrecondition if they have not come.
  absl::Status Commit(int64_t step, double gradient_scale, double learning_rate,
                      bool skip);

  // Whether Commit(step) can be made.
  bool Has(int64_t step) const;

 private:
  struct Sums {
    int64_t step = 0;
    GradientList gradients;
  };

  ParameterStore store_;
  mutable std::mutex mutex_;
  std::optional<Sums> sums_;  // guarded by mutex_
};

}  // namespace gshard

#endif  // EXPERT_WORKER_REPLICA_H_
