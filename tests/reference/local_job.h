// LocalJob: a training job in one process with its text in memory. A cluster
// has the same losses, validations and weights, bit for bit.

#ifndef TESTS_REFERENCE_LOCAL_JOB_H_
#define TESTS_REFERENCE_LOCAL_JOB_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "services/config/training_job.h"
#include "services/data/batch_order.h"
#include "services/data/held_out.h"
#include "tests/reference/dataset.h"
#include "tests/reference/local_trainer.h"

namespace gshard {

class LocalJob {
 public:
  // `job` is as it is submitted. `tokenizer_path` is that of both sides, which
  // a cluster has trained.
  static absl::StatusOr<std::unique_ptr<LocalJob>> Create(
      TrainingJob job, const std::string& tokenizer_path);

  // Runs the next step.
  absl::StatusOr<StepResult> Step();

  // REQUIRES, below: the job has held-out text.
  absl::StatusOr<StepStatistics> Validate() const;
  int32_t held_out_microbatches() const { return held_out_->microbatches(); }

  const ParameterStore& parameters() const { return trainer_->parameters(); }

 private:
  explicit LocalJob(Dataset train) : train_(std::move(train)) {}

  const Dataset train_;
  std::optional<BatchOrder> order_;
  std::optional<Dataset> dev_;
  std::optional<HeldOut> held_out_;
  std::unique_ptr<LocalTrainer> trainer_;
};

}  // namespace gshard

#endif  // TESTS_REFERENCE_LOCAL_JOB_H_
