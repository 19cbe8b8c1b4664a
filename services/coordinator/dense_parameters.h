// DenseParameters: the dense side of a training session. Holds the dense
// parameters, and sums the gradients that routers push in order of their
// microbatches.

#ifndef SERVICES_COORDINATOR_DENSE_PARAMETERS_H_
#define SERVICES_COORDINATOR_DENSE_PARAMETERS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/rpc/tensor_pieces.h"
#include "services/train/ordered_sum.h"
#include "services/train/parameter_store.h"

namespace gshard {

// Thread-safe: routers push and pull while the job's thread steps.
class DenseParameters {
 public:
  // `store` holds the parameters after `step` updates.
  DenseParameters(std::string session, std::unique_ptr<ParameterStore> store,
                  int64_t step);

  const std::string& session() const { return session_; }

  // What routers push, by name.
  const std::map<std::string, ExpectedTensor>& expected() const {
    return expected_;
  }

  // The parameters after `version` updates. Errors: FailedPrecondition if
  // these are not the present ones.
  absl::StatusOr<NamedTensors> Pull(int64_t version) const;

  // Takes the gradients of one microbatch; taking those of an attempt twice, or
  // of two attempts, is as taking them once, for they are the same.
  //
  // Errors: FailedPrecondition for another step or attempt than expected;
  // InvalidArgument if the tensors are not the expected ones.
  absl::Status CheckPush(int64_t step, int32_t microbatch,
                         int32_t attempt) const;
  absl::Status Push(int64_t step, int32_t microbatch, int32_t attempt,
                    NamedTensors gradients);

  // The rest is for the job's thread.

  // Expects the gradients of `count` microbatches of the next step.
  void BeginStep(int32_t count);
  // Nobody but this attempt may push the microbatch from now on.
  void Expect(int32_t microbatch, int32_t attempt);
  bool HasGradients(int32_t microbatch) const;

  // The sums. REQUIRES: HasGradients of all microbatches; once a step.
  GradientList TakeGradients();
  std::vector<SquaredNorm> SquaredNorms(const GradientList& gradients) const;
  void Update(const GradientList& gradients, double gradient_scale,
              double learning_rate);
  // Counts the step, and changes nothing.
  void SkipUpdate();
  int64_t step() const;

  // As they are now; see ParameterStore. To be let go on the job's thread.
  std::vector<NamedTensor> Snapshot() const;

 private:
  absl::Status CheckPushLocked(int64_t step, int32_t microbatch,
                               int32_t attempt) const;  // needs mutex_

  const std::string session_;
  std::map<std::string, ExpectedTensor> expected_;
  mutable std::mutex mutex_;
  const std::unique_ptr<ParameterStore> store_;  // guarded by mutex_
  int64_t step_;                                 // updates made; by mutex_
  std::shared_ptr<OrderedSum> sum_;              // guarded by mutex_
  std::vector<int32_t> attempts_;                // guarded by mutex_
  std::vector<bool> pushed_;                     // guarded by mutex_
};

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_DENSE_PARAMETERS_H_
