// A job that trains on WorkerSessions in this process, stage by stage, and what
// it must come to.

#ifndef TESTS_EXPERT_WORKER_SESSION_CLUSTER_H_
#define TESTS_EXPERT_WORKER_SESSION_CLUSTER_H_

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "services/train/step_scale.h"
#include "tests/expert_worker/training_model.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {

constexpr int64_t kMemory = int64_t{1} << 30;

// Coordinator and router of a job, with workers that are sessions.
class SessionCluster {
 public:
  // With `buddies`, each session keeps a replica of the one before. All take
  // their memory of one account.
  SessionCluster(const TrainingJob& job, int workers, bool buddies = false,
                 const MemoryAccount& memory = kMemory, int64_t window = 0)
      : job_(job),
        buddies_(buddies),
        experts_(DealExperts(static_cast<int32_t>(job.model.experts), workers)),
        roles_(SplitTraining(job)),
        runner_(job.model, roles_.router),
        schedule_(MakeSchedule(job.schedule)),
        dense_(SpecsOf(job.model, /*per_expert=*/false), {},
               MakeOptimizer(job.optimizer)) {
    CHECK(dense_.Initialize(job.seed).ok());
    for (int w = 0; w < workers; ++w) {
      WorkerSessionSpec spec = TrainingSpec(job, roles_.segments, experts_[w]);
      if (buddies_) spec.replicated_experts = experts_[Before(w)];
      spec.microbatch_window = window;
      auto session = WorkerSession::Create(std::move(spec), memory);
      CHECK(session.ok());
      sessions_.push_back(*std::move(session));
    }
    BeginStep();
  }

  // Runs a microbatch of the next step; keeps the dense gradients if all goes
  // well.
  absl::Status Run(int32_t index, int32_t attempt, int calls = 1 << 30) {
    SegmentRun run;
    run.step = step_ + 1;
    run.microbatch = index;
    run.attempt = attempt;
    run.owner = 1;
    SessionSegments segments(experts_, pointers(), run, calls);
    ASSIGN_OR_RETURN(
        MicrobatchResult result,
        runner_.Run(RandomBatch(step_ + 1, index), job_.seed, step_ + 1, index,
                    dense_.tensors(), &segments));
    attempts_[index] = attempt;
    target_tokens_ += result.statistics.target_tokens;
    std::vector<Tensor> values;
    names_.clear();
    for (auto& [name, gradient] : result.gradients) {
      names_.push_back(name);
      values.push_back(std::move(gradient));
    }
    const absl::Status added = sum_->Add(index, std::move(values));
    if (absl::IsAlreadyExists(added)) {
      target_tokens_ -= result.statistics.target_tokens;
      return absl::OkStatus();
    }
    return added;
  }

  absl::Status Commit() {
    GradientList gradients;
    std::vector<Tensor> sums = sum_->Take();
    for (size_t i = 0; i < names_.size(); ++i) {
      gradients.emplace_back(names_[i], std::move(sums[i]));
    }
    std::vector<SquaredNorm> norms = dense_.SquaredNorms(gradients);
    for (const auto& session : sessions_) {
      ASSIGN_OR_RETURN(const std::vector<SquaredNorm> some,
                       session->PrepareStep(step_ + 1, attempts_));
      norms.insert(norms.end(), some.begin(), some.end());
    }
    if (buddies_) RETURN_IF_ERROR(Replicate());
    ASSIGN_OR_RETURN(
        const StepScale scale,
        ScaleStep(TotalSquaredNorm(norms), target_tokens_, job_.clip_norm));
    ++step_;
    const double rate = schedule_.LearningRate(step_);
    for (const auto& session : sessions_) {
      RETURN_IF_ERROR(session->CommitStep(step_, scale.gradient_scale, rate,
                                          /*skip=*/false));
    }
    dense_.Update(gradients, scale.gradient_scale, step_, rate);
    BeginStep();
    return absl::OkStatus();
  }

  // All parameters are those of `reference`, bit for bit.
  void ExpectEqual(const LocalTrainer& reference) const {
    const TensorMap& expected = reference.parameters().tensors();
    for (const auto& [name, tensor] : dense_.tensors()) {
      EXPECT_TRUE(TensorEqual(tensor, expected.at(name))) << name;
    }
    for (size_t w = 0; w < sessions_.size(); ++w) {
      for (const auto& [name, tensor] : sessions_[w]->Parameters()) {
        for (size_t i = 0; i < experts_[w].size(); ++i) {
          const int32_t e = experts_[w][i];
          EXPECT_TRUE(TensorEqual(tensor.Rows(i, i + 1),
                                  expected.at(name).Rows(e, e + 1)))
              << name << "/" << e;
        }
      }
    }
  }

  std::vector<WorkerSession*> pointers() const {
    std::vector<WorkerSession*> pointers;
    for (const auto& session : sessions_) pointers.push_back(session.get());
    return pointers;
  }
  WorkerSession& session(int w) { return *sessions_[w]; }
  const std::vector<int32_t>& experts(int w) const { return experts_[w]; }
  int Before(int w) const {
    return w > 0 ? w - 1 : static_cast<int>(experts_.size()) - 1;
  }
  const RolePrograms& roles() const { return roles_; }
  const std::vector<int32_t>& attempts() const { return attempts_; }

 private:
  absl::Status Replicate() {
    for (size_t w = 0; w < sessions_.size(); ++w) {
      ASSIGN_OR_RETURN(
          const GradientList sums,
          sessions_[Before(static_cast<int>(w))]->PreparedGradients(step_ + 1));
      RETURN_IF_ERROR(sessions_[w]->ReplicateGradients(step_ + 1, sums));
    }
    return absl::OkStatus();
  }

  void BeginStep() {
    sum_ = std::make_unique<OrderedSum>(kMicrobatches, kMicrobatches);
    attempts_.assign(kMicrobatches, 0);
    target_tokens_ = 0;
  }

  const TrainingJob job_;
  const bool buddies_;
  const ExpertsOfWorkers experts_;
  const RolePrograms roles_;
  const MicrobatchRunner runner_;
  const Schedule schedule_;
  ParameterStore dense_;
  std::vector<std::unique_ptr<WorkerSession>> sessions_;
  int64_t step_ = 0;
  std::unique_ptr<OrderedSum> sum_;
  std::vector<std::string> names_;
  std::vector<int32_t> attempts_;
  int64_t target_tokens_ = 0;
};

inline std::unique_ptr<LocalTrainer> Reference(const TrainingJob& job,
                                               int steps) {
  auto trainer = LocalTrainer::Create(job);
  CHECK(trainer.ok());
  for (int i = 0; i < steps; ++i) {
    EXPECT_OK((*trainer)->Step(RandomBatch));
  }
  return *std::move(trainer);
}

}  // namespace gshard

#endif  // TESTS_EXPERT_WORKER_SESSION_CLUSTER_H_
