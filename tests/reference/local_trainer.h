// LocalTrainer: a training job in one process, on the unpartitioned program.
//
// The reference for distributed training: routers, workers and coordinator
// together produce the same losses and weights, bit for bit.

#ifndef TESTS_REFERENCE_LOCAL_TRAINER_H_
#define TESTS_REFERENCE_LOCAL_TRAINER_H_

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "services/config/training_job.h"
#include "services/data/batch.h"
#include "services/train/microbatch.h"
#include "services/train/parameter_store.h"
#include "services/train/schedule.h"
#include "services/train/step_statistics.h"

namespace gshard {

class LocalTrainer {
 public:
  // Microbatch `index` of `step`, both as MicrobatchRunner counts them.
  using BatchSource = std::function<Batch(int64_t step, int64_t index)>;

  // `job` has been validated. Parameters are initialised from its seed.
  static absl::StatusOr<std::unique_ptr<LocalTrainer>> Create(
      const TrainingJob& job);

  // Runs the next step. Errors: FailedPrecondition if a gradient is not finite;
  // the parameters are then unchanged.
  absl::StatusOr<StepResult> Step(const BatchSource& batches);

  // The sums over microbatches 0 .. count - 1 of held-out text, with the
  // current parameters.
  absl::StatusOr<StepStatistics> Validate(
      int64_t count, const std::function<Batch(int64_t index)>& batches) const;

  int64_t step() const { return step_; }  // updates made
  const ParameterStore& parameters() const { return *store_; }

 private:
  LocalTrainer(const TrainingJob& job, Program program, Program evaluation);

  const TrainingJob job_;
  const Schedule schedule_;
  const MicrobatchRunner runner_;
  const MicrobatchRunner evaluator_;
  std::unique_ptr<ParameterStore> store_;
  int64_t step_ = 0;
};

}  // namespace gshard

#endif  // TESTS_REFERENCE_LOCAL_TRAINER_H_
