// Sessions on several workers against LocalTrainer, bit for bit.

#include "expert_worker/worker_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/graph/text.h"
#include "tests/expert_worker/training_model.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;
constexpr int64_t kMemory = int64_t{1} << 30;

// Coordinator and router of a job, with workers that are sessions.
class Cluster {
 public:
  Cluster(const TrainingJob& job, int workers)
      : job_(job),
        experts_(DealExperts(static_cast<int32_t>(job.model.experts), workers)),
        roles_(SplitTraining(job)),
        runner_(job.model, roles_.router),
        schedule_(MakeSchedule(job.schedule)),
        dense_(SpecsOf(job.model, /*per_expert=*/false), {},
               MakeOptimizer(job.optimizer)) {
    CHECK(dense_.Initialize(job.seed).ok());
    for (const std::vector<int32_t>& experts : experts_) {
      auto session = WorkerSession::Create(
          TrainingSpec(job, roles_.segments, experts), kMemory);
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
  const RolePrograms& roles() const { return roles_; }
  const std::vector<int32_t>& attempts() const { return attempts_; }

 private:
  void BeginStep() {
    sum_ = std::make_unique<OrderedSum>(kMicrobatches, kMicrobatches);
    attempts_.assign(kMicrobatches, 0);
    target_tokens_ = 0;
  }

  const TrainingJob job_;
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

std::unique_ptr<LocalTrainer> Reference(const TrainingJob& job, int steps) {
  auto trainer = LocalTrainer::Create(job);
  CHECK(trainer.ok());
  for (int i = 0; i < steps; ++i) {
    EXPECT_OK((*trainer)->Step(RandomBatch));
  }
  return *std::move(trainer);
}

class WorkersTest : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Workers, WorkersTest, ::testing::Values(1, 2, 3, 5));

TEST_P(WorkersTest, TrainTheBitsOfOneProcess) {
  for (const OptimizerConfig& optimizer :
       {OptimizerConfig(AdafactorConfig()), OptimizerConfig(AdamConfig())}) {
    const TrainingJob job = SmallJob(optimizer);
    Cluster cluster(job, GetParam());
    for (int step = 0; step < 3; ++step) {
      for (int32_t i = 0; i < kMicrobatches; ++i) ASSERT_OK(cluster.Run(i, 0));
      ASSERT_OK(cluster.Commit());
    }
    cluster.ExpectEqual(*Reference(job, 3));
    EXPECT_EQ(cluster.session(0).open_runs(), 0u);
    EXPECT_EQ(cluster.session(0).step(), 3);
  }
}

TEST_P(WorkersTest, NeitherOrderNorFailedAttemptsShow) {
  const TrainingJob job = SmallJob();
  Cluster cluster(job, GetParam());
  for (int step = 0; step < 2; ++step) {
    ASSERT_OK(cluster.Run(2, 0));
    // Dies between forward and backward, dies at the start, succeeds.
    EXPECT_THAT(cluster.Run(0, 0, /*calls=*/3),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("died")));
    EXPECT_GT(cluster.session(0).open_runs(), 0u);
    EXPECT_THAT(cluster.Run(0, 1, /*calls=*/1),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("died")));
    EXPECT_EQ(cluster.session(0).open_runs(), 1u);
    ASSERT_OK(cluster.Run(0, 4));
    EXPECT_THAT(cluster.Run(0, 3),
                StatusIs(kPrecondition, HasSubstr("superseded by attempt 4")));
    // Complete, and done once more.
    ASSERT_OK(cluster.Run(1, 0));
    ASSERT_OK(cluster.Run(1, 1));
    ASSERT_OK(cluster.Run(2, 1));
    ASSERT_OK(cluster.Commit());
    EXPECT_EQ(cluster.session(0).open_runs(), 0u);
  }
  cluster.ExpectEqual(*Reference(job, 2));
}

TEST(WorkerSessionTest, MicrobatchesRunAtTheSameTime) {
  const TrainingJob job = SmallJob();
  Cluster cluster(job, 2);
  const MicrobatchRunner runner(job.model, cluster.roles().router);
  ParameterStore dense(SpecsOf(job.model, false), {}, nullptr);
  ASSERT_OK(dense.Initialize(job.seed));
  std::vector<std::thread> routers;
  for (int32_t i = 0; i < kMicrobatches; ++i) {
    routers.emplace_back([&, i] {
      SegmentRun run;
      run.step = 1;
      run.microbatch = i;
      SessionSegments segments(DealExperts(5, 2), cluster.pointers(), run);
      EXPECT_OK(runner.Run(RandomBatch(1, i), job.seed, 1, i, dense.tensors(),
                           &segments));
    });
  }
  for (std::thread& router : routers) router.join();
  std::vector<SquaredNorm> together;
  for (int w = 0; w < 2; ++w) {
    ASSERT_OK_AND_ASSIGN(const auto norms,
                         cluster.session(w).PrepareStep(1, cluster.attempts()));
    together.insert(together.end(), norms.begin(), norms.end());
  }

  Cluster serial(job, 1);
  for (int32_t i = 0; i < kMicrobatches; ++i) ASSERT_OK(serial.Run(i, 0));
  ASSERT_OK_AND_ASSIGN(const auto norms,
                       serial.session(0).PrepareStep(1, serial.attempts()));
  EXPECT_EQ(TotalSquaredNorm(together), TotalSquaredNorm(norms));
  EXPECT_GT(TotalSquaredNorm(norms), 0.0);
}

TEST(WorkerSessionTest, StepsAreTransactions) {
  Cluster cluster(SmallJob(), 1);
  WorkerSession& session = cluster.session(0);
  const std::vector<int32_t> none(kMicrobatches, 0);
  EXPECT_THAT(session.PrepareStep(1, none),
              StatusIs(kPrecondition, HasSubstr("microbatch 0")));
  EXPECT_THAT(session.CommitStep(1, 1.0, 1.0, false),
              StatusIs(kPrecondition, HasSubstr("not prepared")));
  for (int32_t i = 0; i < kMicrobatches; ++i) ASSERT_OK(cluster.Run(i, 0));

  EXPECT_THAT(session.PrepareStep(2, none),
              StatusIs(kPrecondition, HasSubstr("expected step 1, got 2")));
  EXPECT_THAT(session.PrepareStep(1, {0, 0}),
              StatusIs(kInvalid, HasSubstr("3 microbatches, got 2")));
  EXPECT_THAT(
      session.PrepareStep(1, {0, 1, 0}),
      StatusIs(kPrecondition, HasSubstr("microbatch 1: expected attempt 1")));
  ASSERT_OK_AND_ASSIGN(const auto norms, session.PrepareStep(1, none));
  ASSERT_OK_AND_ASSIGN(const auto again, session.PrepareStep(1, none));
  ASSERT_EQ(norms.size(), again.size());
  EXPECT_EQ(TotalSquaredNorm(norms), TotalSquaredNorm(again));
  EXPECT_THAT(session.PrepareStep(1, {0, 1, 0}),
              StatusIs(kPrecondition, HasSubstr("other attempts")));
  EXPECT_THAT(cluster.Run(0, 1),
              StatusIs(kPrecondition, HasSubstr("prepared; got step 1")));

  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(session.CommitStep(1, nan, 1.0, false),
              StatusIs(kInvalid, HasSubstr("gradient_scale")));
  EXPECT_THAT(session.CommitStep(1, 1.0, nan, false),
              StatusIs(kInvalid, HasSubstr("learning_rate")));
  const TensorMap before = session.Parameters();
  ASSERT_OK(session.CommitStep(1, 0.1, 0.1, false));
  const TensorMap after = session.Parameters();
  ASSERT_OK(session.CommitStep(1, 0.1, 0.1, false));
  for (const auto& [name, tensor] : session.Parameters()) {
    EXPECT_TRUE(TensorEqual(tensor, after.at(name))) << name;
    EXPECT_FALSE(TensorEqual(tensor, before.at(name))) << name;
  }
  EXPECT_THAT(cluster.Run(0, 0),
              StatusIs(kPrecondition, HasSubstr("at step 2")));
}

TEST(WorkerSessionTest, ASkippedStepLeavesTheParameters) {
  Cluster cluster(SmallJob(), 1);
  WorkerSession& session = cluster.session(0);
  for (int32_t i = 0; i < kMicrobatches; ++i) ASSERT_OK(cluster.Run(i, 0));
  ASSERT_OK(session.PrepareStep(1, cluster.attempts()));
  const TensorMap before = session.Parameters();
  ASSERT_OK(session.CommitStep(1, 1.0, 1.0, /*skip=*/true));
  EXPECT_EQ(session.step(), 1);
  for (const auto& [name, tensor] : session.Parameters()) {
    EXPECT_TRUE(TensorEqual(tensor, before.at(name))) << name;
  }
}

TEST(WorkerSessionTest, EndsTheRunsOfAnOwnerOnly) {
  Cluster cluster(SmallJob(), 1);
  WorkerSession& session = cluster.session(0);
  EXPECT_THAT(cluster.Run(0, 0, /*calls=*/2),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("died")));
  EXPECT_EQ(session.open_runs(), 1u);
  session.EndRuns(/*owner=*/2);
  EXPECT_EQ(session.open_runs(), 1u);
  session.EndRuns(/*owner=*/1);
  EXPECT_EQ(session.open_runs(), 0u);
}

TEST(WorkerSessionTest, RefusesMicrobatchesThatThereAreNot) {
  Cluster cluster(SmallJob(), 1);
  WorkerSession& session = cluster.session(0);
  SegmentRun run;
  run.segment = cluster.roles().segments[0].name;
  run.step = 1;
  run.microbatch = kMicrobatches;
  EXPECT_THAT(session.RunSegment(run, {}),
              StatusIs(kInvalid, HasSubstr("microbatch in [0, 3)")));
  run.microbatch = -1;
  EXPECT_THAT(session.RunSegment(run, {}),
              StatusIs(kInvalid, HasSubstr("microbatch in [0, 3)")));
  run.microbatch = 0;
  run.attempt = -1;
  EXPECT_THAT(session.RunSegment(run, {}),
              StatusIs(kInvalid, HasSubstr("attempt of at least 0")));
  run.attempt = 0;
  EXPECT_THAT(session.RunSegment(run, {}),
              StatusIs(kInvalid, HasSubstr("inputs, got 0")));
  run.segment = "nothing";
  EXPECT_THAT(session.RunSegment(run, {}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("nothing")));
  EXPECT_EQ(session.open_runs(), 0u);
}

class CheckpointTest : public ::testing::Test {
 protected:
  CheckpointTest() {
    char name[] = "/tmp/gshard_session_XXXXXX";
    root_ = mkdtemp(name);
  }
  ~CheckpointTest() override { std::filesystem::remove_all(root_); }
  std::string root_;
};

TEST_F(CheckpointTest, TrainingGoesOnOnOtherWorkers) {
  const TrainingJob job = SmallJob();
  Cluster cluster(job, 2);
  for (int32_t i = 0; i < kMicrobatches; ++i) ASSERT_OK(cluster.Run(i, 0));
  ASSERT_OK(cluster.Commit());

  EXPECT_THAT(cluster.session(0).WriteCheckpoint(root_, 2, "worker-0"),
              StatusIs(kPrecondition, HasSubstr("committed, 1, got 2")));
  Manifest manifest;
  manifest.step = 1;
  for (int w = 0; w < 2; ++w) {
    ASSERT_OK_AND_ASSIGN(const auto entries,
                         cluster.session(w).WriteCheckpoint(
                             root_, 1, absl::StrCat("worker-", w)));
    manifest.tensors.insert(manifest.tensors.end(), entries.begin(),
                            entries.end());
  }
  ASSERT_OK_AND_ASSIGN(const std::string path,
                       CommitCheckpoint(root_, manifest, ""));

  WorkerSessionSpec spec = TrainingSpec(job, cluster.roles().segments, {3, 4});
  spec.checkpoint_directory = path;
  spec.step = 7;
  EXPECT_THAT(WorkerSession::Create(spec, kMemory),
              StatusIs(kPrecondition, HasSubstr("step 7, got 1")));
  spec.step = 1;
  ASSERT_OK_AND_ASSIGN(const auto session,
                       WorkerSession::Create(spec, kMemory));
  EXPECT_EQ(session->step(), 1);
  const auto reference = Reference(job, 1);
  for (const auto& [name, tensor] : session->Parameters()) {
    EXPECT_TRUE(TensorEqual(
        tensor, reference->parameters().tensors().at(name).Rows(3, 5)))
        << name;
  }
  spec.checkpoint_directory = root_ + "/nothing";
  EXPECT_THAT(WorkerSession::Create(spec, kMemory),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("nothing")));
}

class RefusalTest : public ::testing::Test {
 protected:
  RefusalTest()
      : job_(SmallJob()),
        roles_(SplitTraining(job_)),
        spec_(TrainingSpec(job_, roles_.segments, {0, 2})) {}

  void ExpectInvalid(const char* why) {
    EXPECT_THAT(WorkerSession::Create(spec_, kMemory),
                StatusIs(kInvalid, HasSubstr(why)));
    spec_ = TrainingSpec(job_, roles_.segments, {0, 2});
  }

  void SetSegment(const std::string& text) {
    auto program = ParseProgram(text);
    ASSERT_OK(program);
    spec_.segments = {{"a", *program}};
  }

  const TrainingJob job_;
  const RolePrograms roles_;
  WorkerSessionSpec spec_;
};

TEST_F(RefusalTest, WhatDoesNotFitTogether) {
  ASSERT_OK(WorkerSession::Create(spec_, kMemory));
  spec_.experts = {};
  ExpectInvalid("experts: expected at least one");
  spec_.experts = {2, 0};
  ExpectInvalid("got 0 after 2");
  spec_.experts = {1, 1};
  ExpectInvalid("got 1 after 1");
  spec_.experts = {0, 5};
  ExpectInvalid("ids below 5, got 5");
  spec_.experts = {-1};
  ExpectInvalid("got -1");
  spec_.total_experts = 2049;
  ExpectInvalid("total_experts: expected 1 to 2048, got 2049");
  spec_.segments.clear();
  ExpectInvalid("segments: expected 1 to");
  spec_.segments.push_back(spec_.segments[0]);
  ExpectInvalid("a name of its own");
  spec_.microbatches_per_step = 0;
  ExpectInvalid("microbatches_per_step");
  spec_.step = -1;
  ExpectInvalid("step: expected at least 0");
  spec_.parameters.push_back(spec_.parameters[0]);
  ExpectInvalid("is there twice");
  spec_.parameters.pop_back();
  ExpectInvalid("no parameter");
  spec_.parameters[0].name = "other";
  ExpectInvalid("parameter other: expected one gradient, got 0");
  spec_.parameters[0].dims[0] = 4;
  ExpectInvalid("expected [5, ...], got [4");
  spec_.parameters[0].dims[1] = 0;
  ExpectInvalid("sizes of at least 1");
  spec_.parameters[0].dims[1] += 1;
  ExpectInvalid("with a symbol for the first size");
  spec_.optimizer = nullptr;
  ExpectInvalid("segments of serving and evaluation only reply");
}

TEST_F(RefusalTest, WhatIsTooLarge) {
  ASSERT_OK_AND_ASSIGN(const int64_t bytes, CheckWorkerSession(spec_));
  EXPECT_OK(WorkerSession::Create(spec_, bytes));
  EXPECT_THAT(
      WorkerSession::Create(spec_, bytes - 1),
      StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("takes")));
  spec_.parameters[0].dims = {5, int64_t{1} << 30, int64_t{1} << 24};
  EXPECT_THAT(
      WorkerSession::Create(spec_, kMemory),
      StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("too large")));
  spec_.parameters[0].dims = {5, int64_t{1} << 40, int64_t{1} << 40};
  ExpectInvalid("2^60");
}

TEST_F(RefusalTest, SegmentsOfAnotherKind) {
  spec_.optimizer = nullptr;
  spec_.parameters.clear();
  SetSegment(
      "program \"a\" {\n"
      "  %0 = input() {name=\"x\", shape=[R, 8], type=\"f32\"} : f32[R, 8]\n"
      "  output \"reply/v0\" = %0\n}\n");
  ExpectInvalid("input x: expected call/ or saved/");
  spec_.parameters.clear();
  SetSegment(
      "program \"a\" {\n"
      "  %0 = input() {name=\"call/x\", shape=[R, 8], type=\"f32\"} : "
      "f32[R, 8]\n"
      "  output \"result\" = %0\n}\n");
  ExpectInvalid("output result: expected reply/");
}

}  // namespace
}  // namespace gshard
