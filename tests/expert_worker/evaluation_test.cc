// Validation in a training session gives the bits of one process and leaves no
// trace in the session.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "expert_worker/training_worker_session.h"
#include "tests/expert_worker/training_model.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

RolePrograms SplitEvaluation(const TrainingJob& job) {
  absl::StatusOr<Program> program = BuildEvaluateProgram(job.model);
  CHECK(program.ok());
  absl::StatusOr<RolePrograms> roles = SplitRoles(*program);
  CHECK(roles.ok());
  return *std::move(roles);
}

class EvaluationTest : public ::testing::Test {
 protected:
  EvaluationTest() {
    // Options that validation must ignore, and options that it must use.
    job_.model.dropout.moe = 0.3;
    job_.model.gate.training_capacity_factor = 0.5;
    job_.model.gate.evaluation_capacity_factor = 0.7;
    job_.model.gate.evaluation_policy = SecondExpertPolicy::kSampling;
    training_ = SplitTraining(job_);
    evaluation_ = SplitEvaluation(job_);
  }

  WorkerSessionSpec Spec(std::vector<int32_t> experts) const {
    WorkerSessionSpec spec =
        TrainingSpec(job_, training_.segments, std::move(experts));
    spec.evaluation_segments = evaluation_.segments;
    return spec;
  }

  TrainingJob job_ = SmallJob();
  RolePrograms training_;
  RolePrograms evaluation_;
};

TEST_F(EvaluationTest, HasTheBitsOfOneProcessAndLeavesNothing) {
  ASSERT_OK_AND_ASSIGN(const auto local, LocalTrainer::Create(job_));
  ASSERT_OK_AND_ASSIGN(
      const StepStatistics expected,
      local->Validate(3, [](int64_t i) { return RandomBatch(7, i); }));
  EXPECT_GT(expected.loss(), 0.0);
  EXPECT_GT(expected.overflow_share(), 0.0);
  ParameterStore dense(SpecsOf(job_.model, /*per_expert=*/false), {},
                       MakeOptimizer(job_.optimizer));
  ASSERT_OK(dense.Load(nullptr, job_.seed));
  const MicrobatchRunner trainer(job_.model, training_.router);
  const MicrobatchRunner evaluator(job_.model, evaluation_.router);
  for (const int workers : {1, 2, 3, 5}) {
    SCOPED_TRACE(workers);
    const ExpertsOfWorkers experts = DealExperts(5, workers);
    std::vector<std::unique_ptr<WorkerSession>> sessions;
    std::vector<WorkerSession*> pointers;
    for (const auto& own : experts) {
      ASSERT_OK_AND_ASSIGN(auto session,
                           WorkerSession::Create(Spec(own), kMemory));
      pointers.push_back(session.get());
      sessions.push_back(std::move(session));
    }
    // Validates between the segments of a training microbatch that is left
    // open.
    SegmentRun run;
    run.step = 1;
    SessionSegments dies(experts, pointers, run, /*calls_left=*/2);
    ASSERT_FALSE(
        trainer.Run(RandomBatch(1, 0), job_.seed, 1, 0, dense.tensors(), &dies)
            .ok());
    const size_t open = pointers[0]->training()->open_runs();
    EXPECT_GT(open, 0u);
    StepStatistics sum;
    for (int64_t i = 0; i < 3; ++i) {
      SessionSegments segments(experts, pointers, SegmentRun());
      ASSERT_OK_AND_ASSIGN(const StepStatistics one,
                           evaluator.Evaluate(RandomBatch(7, i), job_.seed, i,
                                              dense.tensors(), &segments));
      ASSERT_OK(sum.Merge(one));
    }
    EXPECT_EQ(sum.loss_sum, expected.loss_sum);
    EXPECT_EQ(sum.target_tokens, expected.target_tokens);
    EXPECT_EQ(sum.overflow_share(), expected.overflow_share());
    EXPECT_EQ(pointers[0]->training()->open_runs(), open);
    EXPECT_EQ(pointers[0]->training()->step(), 0);
  }
}

// The validation loss depends on evaluation options only: training options
// (dropout, gate, label smoothing, z-loss) do not change it.
TEST_F(EvaluationTest, KnowsNothingOfTrainingsNoise) {
  const auto loss_of = [](const TrainingJob& job) {
    const auto local = LocalTrainer::Create(job);
    CHECK(local.ok());
    const auto sums =
        (*local)->Validate(2, [](int64_t i) { return RandomBatch(7, i); });
    CHECK(sums.ok());
    return sums->loss_sum;
  };
  TrainingJob other = job_;
  other.model.dropout = {.input = 0, .residual = 0, .attention = 0};
  other.model.gate.training_capacity_factor = 0;
  other.model.gate.training_policy = SecondExpertPolicy::kAll;
  other.label_smoothing = 0.3;
  other.vocabulary_z_loss = 0.1;
  EXPECT_EQ(loss_of(other), loss_of(job_));
  other.model.gate.evaluation_capacity_factor = 0;
  EXPECT_NE(loss_of(other), loss_of(job_));
}

TEST_F(EvaluationTest, IsTheLossOfTrainingWithoutItsNoise) {
  TrainingJob job = SmallJob();
  job.model.dropout = {.input = 0, .residual = 0, .attention = 0};
  job.model.gate.training_capacity_factor = 0;
  job.model.gate.training_policy = SecondExpertPolicy::kAll;
  job.label_smoothing = 0;
  job.vocabulary_z_loss = 0;
  ASSERT_OK_AND_ASSIGN(const auto local, LocalTrainer::Create(job));
  ASSERT_OK_AND_ASSIGN(const StepStatistics measured,
                       local->Validate(kMicrobatches, [](int64_t i) {
                         return RandomBatch(1, i);
                       }));
  ASSERT_OK_AND_ASSIGN(const StepResult step, local->Step(RandomBatch));
  EXPECT_EQ(measured.loss_sum, step.statistics.loss_sum);
  EXPECT_EQ(measured.target_tokens, step.statistics.target_tokens);
}

TEST_F(EvaluationTest, SegmentsAreOfOneKindOrTheOther) {
  ASSERT_OK_AND_ASSIGN(const auto session,
                       WorkerSession::Create(Spec({0, 1, 2, 3, 4}), kMemory));
  SegmentRun run;
  run.segment = training_.segments[0].name;
  EXPECT_THAT(session->RunSegment(run, {}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no segment")));
  run.segment = evaluation_.segments[0].name;
  run.step = 1;
  EXPECT_THAT(session->RunSegment(run, {}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no segment")));
  run.step = 0;
  run.microbatch = 1;
  EXPECT_FALSE(session->RunSegment(run, {}).ok());
}

TEST_F(EvaluationTest, RefusesSegmentsThatKeepSomething) {
  WorkerSessionSpec spec = Spec({0, 1, 2, 3, 4});
  spec.evaluation_segments = training_.segments;
  EXPECT_THAT(CheckWorkerSession(spec),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("evaluation: segment '")));
}

}  // namespace
}  // namespace gshard
