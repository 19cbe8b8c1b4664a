// Trains a job on WorkerSessions in this process, stage by stage, and compares
// it with LocalTrainer.

#ifndef TESTS_EXPERT_WORKER_SESSION_CLUSTER_H_
#define TESTS_EXPERT_WORKER_SESSION_CLUSTER_H_

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "services/train/parameter_shard.h"
#include "services/train/step_scale.h"
#include "tests/expert_worker/training_model.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {

// The coordinator and router of a job whose workers are WorkerSessions.
class SessionCluster {
 public:
  // With `buddies`, each session keeps a replica of the previous one's experts.
  // All sessions share one memory account.
  SessionCluster(const TrainingJob& job, int workers, bool buddies = false,
                 const MemoryAccount& memory = kMemory, int64_t window = 0,
                 Device* device = nullptr)
      : job_(job),
        buddies_(buddies),
        device_(device),
        experts_(DealExperts(static_cast<int32_t>(job.model.experts), workers)),
        roles_(SplitTraining(job)),
        runner_(job.model, roles_.router),
        schedule_(MakeSchedule(job)),
        dense_(DenseStore(job), /*step=*/0) {
    dense_.BeginStep(kMicrobatches, /*window=*/kMicrobatches);
    for (int w = 0; w < workers; ++w) {
      WorkerSessionSpec spec = TrainingSpec(job, roles_.segments, experts_[w]);
      if (buddies_) spec.replicated_experts = experts_[Before(w)];
      spec.microbatch_window = window;
      auto session = WorkerSession::Create(std::move(spec), memory, device);
      CHECK(session.ok());
      sessions_.push_back(*std::move(session));
    }
  }

  // Runs a microbatch of the next step; keeps its dense gradients on success.
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
    target_tokens_[index] = result.statistics.target_tokens;
    RETURN_IF_ERROR(dense_.Begin(run.step, index, attempt));
    return dense_.Add(run.step, index, attempt, std::move(result.gradients));
  }

  absl::Status Commit() {
    ASSIGN_OR_RETURN(std::vector<SquaredNorm> norms,
                     dense_.Prepare(step_ + 1, attempts_));
    for (const auto& session : sessions_) {
      ASSIGN_OR_RETURN(const std::vector<SquaredNorm> some,
                       session->training()->PrepareStep(step_ + 1, attempts_));
      norms.insert(norms.end(), some.begin(), some.end());
    }
    if (buddies_) RETURN_IF_ERROR(Replicate());
    ASSIGN_OR_RETURN(
        const StepScale scale,
        ScaleStep(TotalSquaredNorm(norms),
                  std::accumulate(target_tokens_.begin(), target_tokens_.end(),
                                  int64_t{0}),
                  job_.clip_norm));
    ++step_;
    const double rate = schedule_.LearningRate(step_);
    for (const auto& session : sessions_) {
      RETURN_IF_ERROR(session->training()->CommitStep(
          step_, scale.gradient_scale, rate, /*skip=*/false));
    }
    attempts_.assign(kMicrobatches, 0);
    return dense_.Commit(step_, scale.gradient_scale, rate, /*skip=*/false);
  }

  // Expects all parameters to equal those of `reference`, bit for bit.
  void ExpectEqual(const LocalTrainer& reference) const {
    const TensorMap& expected = reference.parameters().tensors();
    for (const auto& [name, tensor] : dense_.tensors()) {
      EXPECT_TRUE(TensorEqual(tensor, expected.at(name))) << name;
    }
    for (size_t w = 0; w < sessions_.size(); ++w) {
      for (const auto& [name, tensor] : Parameters(static_cast<int>(w))) {
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
  TrainingWorkerSession& session(int w) const {
    return *sessions_[w]->training();
  }
  // The parameters of session `w`, copied to the host.
  TensorMap Parameters(int w) const {
    TensorMap parameters = session(w).Parameters();
    for (auto& [name, tensor] : parameters) {
      if (!tensor.on_host()) tensor = CopyToHost(*device_, tensor).value();
    }
    return parameters;
  }
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
          session(Before(static_cast<int>(w))).PreparedGradients(step_ + 1));
      RETURN_IF_ERROR(
          session(static_cast<int>(w)).ReplicateGradients(step_ + 1, sums));
    }
    return absl::OkStatus();
  }

  static ParameterStore DenseStore(const TrainingJob& job) {
    ParameterStore store(SpecsOf(job.model, /*per_expert=*/false), {},
                         MakeOptimizer(job.optimizer));
    CHECK(store.Load(nullptr, job.seed).ok());
    return store;
  }

  const TrainingJob job_;
  const bool buddies_;
  Device* const device_;
  const ExpertsOfWorkers experts_;
  const RolePrograms roles_;
  const MicrobatchRunner runner_;
  const Schedule schedule_;
  ParameterShard dense_;
  std::vector<std::unique_ptr<WorkerSession>> sessions_;
  int64_t step_ = 0;
  std::vector<int32_t> attempts_ = std::vector<int32_t>(kMicrobatches, 0);
  std::vector<int64_t> target_tokens_ = std::vector<int64_t>(kMicrobatches, 0);
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
