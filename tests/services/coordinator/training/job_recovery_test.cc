// A job continues when workers are lost, and the result has the same bits.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <limits>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "services/rpc/client/tensor_transfer.h"
#include "tests/services/coordinator/fake_cluster.h"
#include "tests/services/coordinator/hold.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TrainingJob FiveSteps(const FakeCluster& cluster) {
  TrainingJob job = cluster.MakeJob();
  job.steps = 5;
  job.checkpoint.every_steps = 2;
  job.min_workers = 2;
  job.recovery.replacement_wait_ms = 0;
  return job;
}

struct LossCase {
  std::string name;
  Moment is;
  bool from_start;  // no checkpoint exists yet
};

std::vector<LossCase> LossCases() {
  return {
      {"prepare 1", IsPrepare(1), true}, {"commit 2", IsCommit(2), true},
      {"write 2", IsWrite(2), true},     {"prepare 4", IsPrepare(4), false},
      {"write 5", IsWrite(5), false},
  };
}

TEST(JobRecoveryTest, TheOthersTakeOverFromALostWorker) {
  for (const LossCase& c : LossCases()) {
    SCOPED_TRACE(c.name);
    FakeCluster cluster;
    const TrainingJob job = FiveSteps(cluster);
    FakeMember& router = cluster.AddRouter("r");
    FakeMember& stays = cluster.AddWorker("w0");
    Hold hold;
    FakeMember& lost = cluster.AddWorker("w1", hold.At(c.is));
    ASSERT_OK(cluster.Submit(job));
    hold.WaitUntilHeld();
    // The checkpoint is written while steps continue.
    while (!c.from_start && cluster.Describe().jobs(0).checkpoint_step() < 2) {
      std::this_thread::yield();
    }
    hold.Lose(cluster, lost);
    const v1::JobProgress last = cluster.Watch("demo").back();
    ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
    EXPECT_EQ(last.attempt(), 2);
    ExpectTrained(job, 2);
    ExpectTrained(job, 4);
    ExpectTrained(job, 5);
    // The rest of the attempt was aborted before the next one was loaded, and
    // the remaining worker has all experts.
    EXPECT_THAT(stays.commands(), Contains("abort demo/1"));
    EXPECT_THAT(stays.commands(), Contains("load demo/2"));
    EXPECT_THAT(stays.last_load().worker().experts(), ElementsAre(0, 1, 2));
    EXPECT_EQ(stays.last_load().worker().source().has_initial_seed(),
              c.from_start);
    EXPECT_THAT(router.commands(), Contains("load demo/2"));
  }
}

// The job begins with all that it asks for, though some had loaded it before.
TEST(JobRecoveryTest, AWorkerThatIsLostBeforeTheFirstStepIsWaitedFor) {
  FakeCluster cluster;
  const TrainingJob job = FiveSteps(cluster);
  cluster.AddRouter("r");
  FakeMember& stays = cluster.AddWorker("w0");
  Hold hold;
  FakeMember& lost = cluster.AddWorker(
      "w1", hold.At([](const auto& c) { return c.has_load_session(); }));
  ASSERT_OK(cluster.Submit(job));
  hold.Lose(cluster, lost);
  const auto waiting = cluster.Watch("demo", [](const v1::JobProgress& p) {
    return absl::StrContains(p.status().message(),
                             "1 expert workers (2 needed)");
  });
  EXPECT_EQ(waiting.back().state(), v1::JOB_STATE_WAITING);
  FakeMember& comes = cluster.AddWorker("w2");
  const v1::JobProgress last = cluster.Watch("demo").back();
  ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
  EXPECT_EQ(last.attempt(), 2);
  EXPECT_THAT(stays.commands(), Not(Contains("load demo/3")));
  EXPECT_THAT(stays.last_load().worker().experts(), ElementsAre(0, 1));
  EXPECT_THAT(comes.last_load().worker().experts(), ElementsAre(2));
  ExpectTrained(job, 5);
}

TEST(JobRecoveryTest, AWorkerIsLostWhileRoutersWork) {
  FakeCluster cluster;
  const TrainingJob job = FiveSteps(cluster);
  Hold hold;
  cluster.AddRouter("r", hold.At(IsAssign(3)));
  cluster.AddWorker("w0");
  FakeMember& lost = cluster.AddWorker("w1");
  ASSERT_OK(cluster.Submit(job));
  hold.Lose(cluster, lost);
  const v1::JobProgress last = cluster.Watch("demo").back();
  ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
  ExpectTrained(job, 5);
}

TEST(JobRecoveryTest, AWorkerThatJoinsInTimeTakesThePlace) {
  FakeCluster cluster;
  TrainingJob job = FiveSteps(cluster);
  job.recovery.replacement_wait_ms = 3'600'000;
  cluster.AddRouter("r");
  FakeMember& stays = cluster.AddWorker("w0");
  Hold hold;
  FakeMember& lost = cluster.AddWorker("w1", hold.At(IsPrepare(3)));
  ASSERT_OK(cluster.Submit(job));
  hold.Lose(cluster, lost);
  const auto lines = cluster.Watch("demo", [](const v1::JobProgress& p) {
    return p.state() == v1::JOB_STATE_RECOVERING &&
           absl::StrContains(p.status().message(),
                             "1 expert workers (2 needed)");
  });
  EXPECT_EQ(lines.back().state(), v1::JOB_STATE_RECOVERING);
  FakeMember& comes = cluster.AddWorker("w2");
  const v1::JobProgress last = cluster.Watch("demo").back();
  ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
  ExpectTrained(job, 5);
  EXPECT_THAT(stays.last_load().worker().experts(), ElementsAre(0, 1));
  EXPECT_THAT(comes.last_load().worker().experts(), ElementsAre(2));
}

TEST(JobRecoveryTest, AWorkerThatJoinsLaterGetsExpertsAtACheckpoint) {
  FakeCluster cluster;
  TrainingJob job = FiveSteps(cluster);
  job.min_workers = 1;
  cluster.AddRouter("r");
  std::promise<void> joined;
  auto has_joined = joined.get_future().share();
  FakeMember& first = cluster.AddWorker(
      "w0", [&](const v1::Command& c) -> std::optional<v1::CommandReply> {
        if (c.has_commit_step()) has_joined.wait();
        return std::nullopt;
      });
  ASSERT_OK(cluster.Submit(job));
  first.WaitFor("commit 1");
  FakeMember& second = cluster.AddWorker("w1");
  while (cluster.Describe().members_size() != 3) std::this_thread::yield();
  joined.set_value();
  const v1::JobProgress last = cluster.Watch("demo").back();
  ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
  EXPECT_EQ(last.attempt(), 2);
  ExpectTrained(job, 2);
  ExpectTrained(job, 5);
  second.WaitFor("abort demo/2");
  EXPECT_THAT(second.commands(),
              ElementsAre("load demo/2", "prepare 3", "commit 3", "prepare 4",
                          "commit 4", "write 4", "prepare 5", "commit 5",
                          "write 5", "abort demo/2"));
}

// Members rejoin one by one, and all experts would be placed on the first
// worker.
TEST(JobRecoveryTest, AfterARestartMembersHaveTimeToRejoin) {
  std::atomic<int64_t> minutes{0};
  FakeCluster cluster(
      {.lease = absl::Hours(24),
       .clock =
           [&] { return MonotonicTime() + absl::Minutes(minutes.load()); }},
      /*keep=*/true);
  TrainingJob job = FiveSteps(cluster);
  job.min_workers = 1;
  job.recovery.replacement_wait_ms = 1000;
  cluster.AddRouter("r");
  Hold hold;
  FakeMember& first = cluster.AddWorker("w0", hold.At(IsPrepare(3)));
  ASSERT_OK(cluster.Submit(job));
  hold.WaitUntilHeld();
  cluster.RestartCoordinator();
  hold.Release();
  const auto lines = cluster.Watch("demo", [](const v1::JobProgress& p) {
    return absl::StrContains(p.status().message(),
                             "to rejoin: 1 routers and 1 expert workers");
  });
  ASSERT_EQ(lines.back().state(), v1::JOB_STATE_RECOVERING);
  FakeMember& second = cluster.AddWorker("w1");
  while (cluster.Describe().members_size() != 3) std::this_thread::yield();
  minutes = 1;
  const v1::JobProgress last = cluster.Watch("demo").back();
  ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
  EXPECT_EQ(last.attempt(), 2);
  EXPECT_THAT(first.last_load().worker().experts(), ElementsAre(0, 1));
  EXPECT_THAT(second.last_load().worker().experts(), ElementsAre(2));
  ExpectTrained(job, 5);
}

// The disk with the checkpoint is not mounted there, for example.
TEST(JobRecoveryTest, AWorkerThatJoinsLaterAndCannotLoadIsDoneWithout) {
  for (const absl::Status& refusal :
       {absl::PermissionDeniedError("the checkpoint"),
        absl::NotFoundError("no checkpoint"),
        absl::ResourceExhaustedError("no memory")}) {
    SCOPED_TRACE(refusal.ToString());
    FakeCluster cluster;
    TrainingJob job = FiveSteps(cluster);
    job.min_workers = 1;
    cluster.AddRouter("r");
    std::promise<void> joined;
    auto has_joined = joined.get_future().share();
    FakeMember& first = cluster.AddWorker(
        "w0", [&](const v1::Command& c) -> std::optional<v1::CommandReply> {
          if (c.has_commit_step()) has_joined.wait();
          return std::nullopt;
        });
    ASSERT_OK(cluster.Submit(job));
    first.WaitFor("commit 1");
    FakeMember& second = cluster.AddWorker(
        "w1", [&](const v1::Command& c) -> std::optional<v1::CommandReply> {
          if (!c.has_load_session()) return std::nullopt;
          return ReplyWith(refusal);
        });
    while (cluster.Describe().members_size() != 3) std::this_thread::yield();
    joined.set_value();
    const v1::JobProgress last = cluster.Watch("demo").back();
    ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
    EXPECT_EQ(last.attempt(), 3);
    EXPECT_THAT(second.commands(), ElementsAre("load demo/2", "abort demo/2"));
    ExpectTrained(job, 5);
  }
}

TEST(JobRecoveryTest, AWorkerWithTooLittleMemoryIsDoneWithout) {
  FakeCluster cluster;
  const TrainingJob job = FiveSteps(cluster);
  cluster.AddRouter("r");
  FakeMember& stays = cluster.AddWorker("w0");
  Hold hold;
  FakeMember& lost = cluster.AddWorker("w1", hold.At(IsPrepare(2)));
  ASSERT_OK(cluster.Submit(job));
  hold.WaitUntilHeld();
  FakeMember& small = cluster.AddWorker("small", nullptr, /*memory_bytes=*/1);
  while (cluster.Describe().members_size() != 4) std::this_thread::yield();
  hold.Lose(cluster, lost);
  const v1::JobProgress last = cluster.Watch("demo").back();
  ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
  EXPECT_EQ(last.attempt(), 2);
  ExpectTrained(job, 5);
  EXPECT_THAT(stays.last_load().worker().experts(), ElementsAre(0, 1, 2));
  EXPECT_THAT(small.commands(), IsEmpty());
}

// Neither does it keep a job from beginning, if there are enough others.
TEST(JobRecoveryTest, AJobBeginsWithoutAWorkerWithTooLittleMemory) {
  FakeCluster cluster;
  TrainingJob job = FiveSteps(cluster);
  FakeMember& small = cluster.AddWorker("small", nullptr, /*memory_bytes=*/1);
  cluster.AddWorker("w0");
  cluster.AddWorker("w1");
  while (cluster.Describe().members_size() != 3) std::this_thread::yield();
  ASSERT_OK(cluster.Submit(job));
  cluster.AddRouter("r");
  const v1::JobProgress last = cluster.Watch("demo").back();
  ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
  EXPECT_EQ(last.attempt(), 1);
  ExpectTrained(job, 5);
  EXPECT_THAT(small.commands(), IsEmpty());
  // Not without as many as it asks for.
  job.name = "three";
  job.min_workers = 3;
  EXPECT_THAT(cluster.Submit(job),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("of expert worker 'small'")));
}

TEST(JobRecoveryTest, AWorkerThatWantsToLeaveIsDoneWithoutFromACheckpoint) {
  FakeCluster cluster;
  TrainingJob job = FiveSteps(cluster);
  FakeMember& router = cluster.AddRouter("r");
  FakeMember& stays = cluster.AddWorker("w0");
  std::promise<void> asked;
  auto has_asked = asked.get_future().share();
  FakeMember& leaves = cluster.AddWorker(
      "w1", [&](const v1::Command& c) -> std::optional<v1::CommandReply> {
        if (c.has_commit_step()) has_asked.wait();
        return std::nullopt;
      });
  ASSERT_OK(cluster.Submit(job));
  leaves.WaitFor("commit 1");
  // The coordinator lets it go, since it holds no served experts; whether to
  // wait for the job is up to the worker.
  ASSERT_OK(leaves.AwaitMayLeave());
  asked.set_value();
  leaves.WaitFor("abort demo/1");
  const v1::JobProgress last = cluster.Watch("demo").back();
  ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
  EXPECT_EQ(last.attempt(), 2);
  // No step ran twice.
  EXPECT_THAT(leaves.commands(),
              ElementsAre("load demo/1", "prepare 1", "commit 1", "write 1",
                          "abort demo/1"));
  EXPECT_THAT(stays.last_load().worker().experts(), ElementsAre(0, 1, 2));
  EXPECT_EQ(stays.last_load().worker().step(), 1);
  EXPECT_EQ(router.last_load().router().step(), 1);
  ExpectTrained(job, 5);
}

TEST(JobRecoveryTest, GivesUpWithoutProgress) {
  FakeCluster cluster;
  TrainingJob job = FiveSteps(cluster);
  job.min_workers = 1;
  job.recovery.max_recoveries = 3;
  FakeMember& router = cluster.AddRouter("r");
  // A worker that stays a member but always fails step 3.
  cluster.AddWorker(
      "w", [](const v1::Command& c) -> std::optional<v1::CommandReply> {
        if (!c.has_prepare_step() || c.prepare_step().step() != 3) {
          return std::nullopt;
        }
        return ReplyWith(absl::UnavailableError("no route to the router"));
      });
  ASSERT_OK(cluster.Submit(job));
  const v1::JobProgress last = cluster.Watch("demo").back();
  EXPECT_EQ(last.state(), v1::JOB_STATE_FAILED);
  EXPECT_FALSE(last.retryable());
  EXPECT_EQ(last.attempt(), 4);
  EXPECT_THAT(last.status().message(),
              AllOf(HasSubstr("gave up after 3 recoveries"),
                    HasSubstr("no route to the router")));
  EXPECT_THAT(router.commands(), Contains("load demo/4"));
  EXPECT_THAT(router.commands(), Not(Contains("load demo/5")));
}

TEST(JobRecoveryTest, LateGradientsOfAnEarlierAttemptAreRefused) {
  FakeCluster cluster;
  const TrainingJob job = FiveSteps(cluster);
  absl::Status late;
  std::promise<void> pushed;
  std::atomic<bool> done{false};
  cluster.AddRouter(
      "r", [&](const v1::Command& c) -> std::optional<v1::CommandReply> {
        if (!c.has_assign_microbatch() ||
            c.assign_microbatch().session() != "demo/2" ||
            done.exchange(true)) {
          return std::nullopt;
        }
        v1::TensorFrameHeader header;
        header.set_session("demo/1");
        header.set_step(c.assign_microbatch().step());
        late = PushGradients(cluster.channel(), header, {},
                             std::chrono::minutes(1));
        pushed.set_value();
        return std::nullopt;
      });
  cluster.AddWorker("w0");
  Hold hold;
  FakeMember& lost = cluster.AddWorker("w1", hold.At(IsPrepare(3)));
  ASSERT_OK(cluster.Submit(job));
  hold.Lose(cluster, lost);
  pushed.get_future().wait();
  EXPECT_THAT(late, StatusIs(absl::StatusCode::kNotFound, HasSubstr("demo/1")));
  EXPECT_EQ(cluster.Watch("demo").back().state(), v1::JOB_STATE_SUCCEEDED);
  ExpectTrained(job, 5);
}

// A worker whose gradients of `steps` have this squared norm in any attempt.
FakeMember::Intercept NormAt(
    std::set<int64_t> steps,
    double squared_norm = std::numeric_limits<double>::infinity()) {
  return [=](const v1::Command& c) -> std::optional<v1::CommandReply> {
    if (!c.has_prepare_step() || steps.count(c.prepare_step().step()) == 0) {
      return std::nullopt;
    }
    v1::CommandReply reply;
    for (const char* stack : {"encoder", "decoder"}) {
      for (const char* weight : {"wi", "wo"}) {
        for (int e = 0; e < 3; ++e) {
          auto* const norm = reply.mutable_step_prepared()->add_norms();
          norm->set_tensor(absl::StrCat(stack, ".0.moe.", weight, "/", e));
          norm->set_squared_norm(e == 1 ? squared_norm : 1.0);
        }
      }
    }
    return reply;
  };
}

struct NonfiniteCase {
  OnNonfinite policy;
  std::set<int64_t> bad;
  std::set<int64_t> skipped;
  int64_t attempts;
};

TEST(JobRecoveryTest, StepsThatAreNotFiniteAreLeftOutAsThePolicySays) {
  for (const NonfiniteCase& c : std::vector<NonfiniteCase>{
           {OnNonfinite::kSkip, {2}, {2}, 1},
           {OnNonfinite::kSkip, {3, 5}, {3, 5}, 1},
           {OnNonfinite::kRollback, {1}, {1}, 2},
           {OnNonfinite::kRollback, {3}, {3}, 2},
           {OnNonfinite::kRollback, {4}, {3, 4}, 2},  // a checkpoint's step
           {OnNonfinite::kRollback, {4, 5}, {3, 4, 5}, 3}}) {
    SCOPED_TRACE(absl::StrCat("policy ", static_cast<int>(c.policy), ", step ",
                              *c.bad.begin(), ", ", c.bad.size()));
    FakeCluster cluster;
    TrainingJob job = FiveSteps(cluster);
    job.min_workers = 1;
    job.on_nonfinite = c.policy;
    cluster.AddRouter("r");
    cluster.AddWorker("w", NormAt(c.bad));
    ASSERT_OK(cluster.Submit(job));
    const std::vector<v1::JobProgress> lines = cluster.Watch("demo");
    const v1::JobProgress& last = lines.back();
    ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
    EXPECT_EQ(last.step(), 5);
    EXPECT_EQ(last.nonfinite_steps(), static_cast<int64_t>(c.bad.size()));
    EXPECT_EQ(last.attempt(), c.attempts);
    bool told = false;
    for (const v1::JobProgress& line : lines) {
      told |= absl::StrContains(line.status().message(),
                                absl::StrCat("step ", *c.bad.begin(),
                                             ": the gradient of "
                                             "encoder.0.moe.wi/1 is not "
                                             "finite, the first of 4"));
    }
    EXPECT_TRUE(told);
    ExpectTrained(job, 4, c.skipped);
    ExpectTrained(job, 5, c.skipped);
  }
}

// Finite gradients, but optimizers cannot keep their squares.
TEST(JobRecoveryTest, StepsWithHugeGradientsAreLeftOutAsThePolicySays) {
  for (const double clip_norm : {0.0, 1.0}) {
    SCOPED_TRACE(clip_norm);
    FakeCluster cluster;
    TrainingJob job = FiveSteps(cluster);
    job.min_workers = 1;
    job.on_nonfinite = OnNonfinite::kSkip;
    job.clip_norm = clip_norm;
    cluster.AddRouter("r");
    cluster.AddWorker("w", NormAt({3}, 1e60));
    ASSERT_OK(cluster.Submit(job));
    const std::vector<v1::JobProgress> lines = cluster.Watch("demo");
    ASSERT_EQ(lines.back().state(), v1::JOB_STATE_SUCCEEDED);
    const bool left_out = clip_norm == 0;  // clipped, they do no harm
    EXPECT_EQ(lines.back().nonfinite_steps(), left_out ? 1 : 0);
    EXPECT_EQ(std::any_of(lines.begin(), lines.end(),
                          [](const v1::JobProgress& line) {
                            return absl::StrContains(
                                line.status().message(),
                                "the gradient has the norm ");
                          }),
              left_out);
    if (left_out) ExpectTrained(job, 5, /*skipped=*/{3});
  }
}

TEST(JobRecoveryTest, StopsWhenAllStepsAreNotFinite) {
  for (const OnNonfinite policy :
       {OnNonfinite::kStop, OnNonfinite::kSkip, OnNonfinite::kRollback}) {
    SCOPED_TRACE(static_cast<int>(policy));
    FakeCluster cluster;
    TrainingJob job = cluster.MakeJob();
    job.steps = 100;
    job.checkpoint.every_steps = 2;
    job.on_nonfinite = policy;
    job.recovery = {.max_recoveries = 2, .replacement_wait_ms = 0};
    cluster.AddRouter("r");
    std::set<int64_t> all;
    for (int64_t step = 2; step <= 100; ++step) all.insert(step);
    FakeMember& worker = cluster.AddWorker("w", NormAt(all));
    ASSERT_OK(cluster.Submit(job));
    const v1::JobProgress last = cluster.Watch("demo").back();
    EXPECT_EQ(last.state(), v1::JOB_STATE_FAILED);
    EXPECT_FALSE(last.retryable());
    EXPECT_THAT(
        last.status().message(),
        AllOf(HasSubstr("the gradient of encoder.0.moe.wi/1"),
              HasSubstr(policy == OnNonfinite::kStop ? "stopped"
                                                     : "gave up after 2")));
    worker.WaitFor(absl::StrCat("abort demo/", last.attempt()));
  }
}

// A worker that sends heartbeats but holds up a step is cut off, and the job
// continues without it.
TEST(JobRecoveryTest, AWorkerThatHoldsUpAStepIsDoneWithout) {
  std::atomic<int64_t> minutes{0};
  FakeCluster cluster({.lease = absl::Hours(24), .clock = [&] {
                         return MonotonicTime() + absl::Minutes(minutes.load());
                       }});
  TrainingJob job = FiveSteps(cluster);
  cluster.AddRouter("r");
  cluster.AddWorker("w0");
  std::promise<void> held, go_on;
  auto may_go_on = go_on.get_future().share();
  std::atomic<bool> first{true};
  cluster.AddWorker(
      "w1", [&](const v1::Command& command) -> std::optional<v1::CommandReply> {
        if (command.has_prepare_step() && command.prepare_step().step() == 4 &&
            first.exchange(false)) {
          held.set_value();
          may_go_on.wait();
        }
        return std::nullopt;
      });
  ASSERT_OK(cluster.Submit(job));
  held.get_future().wait();
  minutes = 9;
  cluster.coordinator().members().Expire();
  EXPECT_EQ(cluster.Describe().members_size(), 3);
  minutes = 10;
  cluster.coordinator().members().Expire();
  const v1::JobProgress last = cluster.Watch("demo").back();
  EXPECT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
  EXPECT_EQ(last.attempt(), 2);
  go_on.set_value();
  ExpectTrained(job, 5);
}

}  // namespace
}  // namespace gshard
