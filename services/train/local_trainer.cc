#include "services/train/local_trainer.h"

#include <cmath>
#include <numeric>

#include "services/base/status_macros.h"
#include "services/train/gradient_norm.h"
#include "services/train/ordered_sum.h"

namespace gshard {

Schedule MakeSchedule(const LearningRateSchedule& config) {
  absl::StatusOr<Schedule> schedule =
      Schedule::Create({.warmup = config.linear_warmup ? WarmupShape::kLinear
                                                       : WarmupShape::kConstant,
                        .multiplier = config.multiplier,
                        .warmup_steps = config.warmup_steps});
  CHECK(schedule.ok());  // the job was validated
  return *schedule;
}

LossConfig MakeLossConfig(const TrainingJob& job) {
  return {.label_smoothing = job.label_smoothing,
          .z_loss = job.vocabulary_z_loss};
}

LocalTrainer::LocalTrainer(const TrainingJob& job, Program program,
                           Program evaluation)
    : job_(job),
      schedule_(MakeSchedule(job.schedule)),
      runner_(job.model, std::move(program)),
      evaluator_(job.model, std::move(evaluation)) {}

absl::StatusOr<std::unique_ptr<LocalTrainer>> LocalTrainer::Create(
    const TrainingJob& job) {
  ASSIGN_OR_RETURN(Program program,
                   BuildTrainProgram(job.model, MakeLossConfig(job)));
  ASSIGN_OR_RETURN(Program evaluation, BuildEvaluateProgram(job.model));
  std::unique_ptr<LocalTrainer> trainer(
      new LocalTrainer(job, std::move(program), std::move(evaluation)));
  std::vector<int32_t> experts(job.model.experts);
  std::iota(experts.begin(), experts.end(), 0);
  trainer->store_ = std::make_unique<ParameterStore>(
      ModelParameters(job.model), std::move(experts),
      MakeOptimizer(job.optimizer));
  RETURN_IF_ERROR(trainer->store_->Initialize(job.seed));
  return trainer;
}

absl::StatusOr<StepResult> LocalTrainer::Step(const BatchSource& batches) {
  const int64_t step = step_ + 1;
  StepResult result;
  OrderedSum sum(job_.microbatches_per_step, /*max_pending=*/0);
  std::vector<std::string> names;
  for (int64_t index = 0; index < job_.microbatches_per_step; ++index) {
    ASSIGN_OR_RETURN(MicrobatchResult microbatch,
                     runner_.Run(batches(step, index), job_.seed, step, index,
                                 store_->tensors()));
    RETURN_IF_ERROR(result.statistics.Merge(microbatch.statistics));
    names.clear();
    std::vector<Tensor> values;
    for (auto& [name, gradient] : microbatch.gradients) {
      names.push_back(name);
      values.push_back(std::move(gradient));
    }
    microbatch.gradients.clear();
    RETURN_IF_ERROR(sum.Add(index, std::move(values)));
  }
  GradientList gradients;
  std::vector<Tensor> sums = sum.Take();
  for (size_t i = 0; i < names.size(); ++i) {
    gradients.emplace_back(names[i], std::move(sums[i]));
  }
  RETURN_IF_ERROR(store_->CheckGradients(gradients));
  ASSIGN_OR_RETURN(const StepScale scale,
                   ScaleStep(TotalSquaredNorm(store_->SquaredNorms(gradients)),
                             result.statistics.target_tokens, job_.clip_norm));
  result.gradient_norm = scale.gradient_norm;
  result.learning_rate = schedule_.LearningRate(step);
  store_->Update(gradients, scale.gradient_scale, step, result.learning_rate);
  step_ = step;
  return result;
}

absl::StatusOr<StepStatistics> LocalTrainer::Validate(
    int64_t count, const std::function<Batch(int64_t index)>& batches) const {
  StepStatistics sum;
  for (int64_t index = 0; index < count; ++index) {
    ASSIGN_OR_RETURN(const StepStatistics microbatch,
                     evaluator_.Evaluate(batches(index), job_.seed, index,
                                         store_->tensors()));
    RETURN_IF_ERROR(sum.Merge(microbatch));
  }
  return sum;
}

absl::StatusOr<StepScale> ScaleStep(double squared_norm_of_sum,
                                    int64_t target_tokens, double clip_norm) {
  if (target_tokens < 1) {
    return absl::FailedPreconditionError("the step has no target tokens");
  }
  const double mean = 1.0 / static_cast<double>(target_tokens);
  const double squared_norm = squared_norm_of_sum * mean * mean;
  auto clip = GlobalNormScale(squared_norm, clip_norm);
  if (!clip.ok()) {
    return absl::FailedPreconditionError(
        "the gradient of the step is not finite");
  }
  return StepScale{.gradient_norm = std::sqrt(squared_norm),
                   .gradient_scale = mean * *clip};
}

}  // namespace gshard
