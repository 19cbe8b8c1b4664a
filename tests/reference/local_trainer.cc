#include "tests/reference/local_trainer.h"

#include <numeric>

#include "services/base/status_macros.h"
#include "services/train/job_options.h"
#include "services/train/ordered_sum.h"
#include "services/train/step_scale.h"

namespace gshard {

LocalTrainer::LocalTrainer(const TrainingJob& job, Program program,
                           Program evaluation)
    : job_(job),
      schedule_(MakeSchedule(job)),
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
  RETURN_IF_ERROR(trainer->store_->Load(nullptr, job.seed));
  return trainer;
}

absl::StatusOr<StepResult> LocalTrainer::Step(const BatchSource& batches) {
  const int64_t step = step_ + 1;
  StepResult result;
  OrderedSum sum(job_.microbatches_per_step, /*max_early=*/0);
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
  RETURN_IF_ERROR(InOrder(store_->shapes(), gradients).status());
  ASSIGN_OR_RETURN(std::vector<SquaredNorm> norms,
                   store_->SquaredNorms(gradients));
  ASSIGN_OR_RETURN(const StepScale scale,
                   ScaleStep(TotalSquaredNorm(std::move(norms)),
                             result.statistics.target_tokens, job_.clip_norm));
  result.gradient_norm = scale.gradient_norm;
  result.learning_rate = schedule_.LearningRate(step);
  RETURN_IF_ERROR(store_->Update(gradients, scale.gradient_scale, step,
                                 result.learning_rate));
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

}  // namespace gshard
