#include "services/coordinator/training/job_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <future>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "services/checkpoint/checkpoint_folder.h"
#include "services/tokenizer/tokenizer.h"
#include "services/train/job_options.h"
#include "tests/services/coordinator/fake_cluster.h"
#include "tests/services/coordinator/fake_gradients.h"
#include "tests/services/coordinator/hold.h"
#include "tests/services/coordinator/limited_job.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

TEST(JobRunTest, TrainsBitForBitWithAnyNumberOfMembers) {
  for (const auto& [routers, workers] :
       {std::pair(1, 1), std::pair(1, 4), std::pair(2, 3)}) {
    SCOPED_TRACE(absl::StrCat(routers, " routers, ", workers, " workers"));
    FakeCluster cluster;
    TrainingJob job = cluster.MakeJob();
    job.min_routers = routers;
    job.min_workers = workers;
    job.checkpoint.every_steps = 2;
    std::vector<FakeMember*> fakes;
    for (int r = 0; r < routers; ++r) {
      fakes.push_back(&cluster.AddRouter(absl::StrCat("r", r)));
    }
    for (int w = 0; w < workers; ++w) {
      fakes.push_back(&cluster.AddWorker(absl::StrCat("w", w)));
    }
    ASSERT_OK(cluster.Submit(job));
    const std::vector<v1::JobProgress> lines = cluster.Watch("demo");
    ASSERT_FALSE(lines.empty());
    const v1::JobProgress& last = lines.back();
    ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
    EXPECT_EQ(last.step(), 3);
    EXPECT_EQ(last.total_steps(), 3);
    EXPECT_DOUBLE_EQ(last.loss(), 40.0 / 46.0);
    EXPECT_DOUBLE_EQ(last.balance_loss(), 1.5);
    EXPECT_DOUBLE_EQ(last.overflow_ratio(), 0.2);
    EXPECT_DOUBLE_EQ(last.load_imbalance(), 1.0);
    EXPECT_GT(last.gradient_norm(), 0.5);  // clipped
    EXPECT_EQ(last.checkpoint_step(), 3);
    ExpectTrained(job, 2);
    ExpectTrained(job, 3);
    EXPECT_FALSE(
        IsDirectory(PartialCheckpointPath(job.checkpoint.directory, 3)));
    EXPECT_THAT(cluster.Describe().sessions(), IsEmpty());
    fakes[routers]->WaitFor("abort demo/1");
    // Each worker with experts did its part; the fourth of four has none.
    EXPECT_THAT(fakes[routers]->commands(),
                ElementsAre("load demo/1", "prepare 1", "commit 1", "prepare 2",
                            "commit 2", "write 2", "prepare 3", "commit 3",
                            "write 3", "abort demo/1"));
    if (workers == 4) {
      EXPECT_THAT(fakes.back()->commands(), IsEmpty());
    }
  }
}

TEST(JobRunTest, TrainsTheTokenizersThatTheJobDoesNotName) {
  FakeCluster cluster;
  TrainingJob job = cluster.MakeJob();
  job.steps = 1;
  job.data.source_tokenizer_path.clear();
  job.model.shared_vocabulary = false;
  std::string text;
  for (int i = 0; i < 100; ++i) {
    absl::StrAppend(&text, "de\teins zwei ", i, "\tone two ", i, "\n");
  }
  Spill(job.data.train_path, text);
  cluster.AddRouter("r");
  cluster.AddWorker("w");
  ASSERT_OK(cluster.Submit(job));
  const v1::JobProgress last = cluster.Watch("demo").back();
  ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
  ASSERT_OK_AND_ASSIGN(const auto reader,
                       CheckpointReader::Open(last.checkpoint_directory()));
  ASSERT_OK_AND_ASSIGN(const ModelConfig model,
                       ParseModelConfig(reader->manifest().model_config));
  ASSERT_OK_AND_ASSIGN(const std::string source, reader->ReadTokenizer());
  ASSERT_OK_AND_ASSIGN(const std::string target, reader->ReadTargetTokenizer());
  ASSERT_OK_AND_ASSIGN(const auto source_tokenizer,
                       Tokenizer::FromModelBytes(source));
  ASSERT_OK_AND_ASSIGN(const auto target_tokenizer,
                       Tokenizer::FromModelBytes(target));
  EXPECT_THAT(source_tokenizer->languages(), ElementsAre("de"));
  EXPECT_THAT(target_tokenizer->languages(), IsEmpty());
  EXPECT_EQ(model.source_vocabulary_size, source_tokenizer->vocab_size());
  EXPECT_EQ(model.target_vocabulary_size, target_tokenizer->vocab_size());
  EXPECT_EQ(Slurp(job.checkpoint.directory + "/tokenizer/target.model"),
            target);
}

struct FailureCase {
  std::string name;
  FakeMember::Intercept router;
  FakeMember::Intercept worker;
  absl::StatusCode code;
  std::string message;
};

FakeMember::Intercept On(bool (v1::Command::*has)() const,
                         std::function<v1::CommandReply()> reply) {
  return [=](const v1::Command& command) -> std::optional<v1::CommandReply> {
    if (!(command.*has)()) return std::nullopt;
    return reply();
  };
}

TEST(JobRunTest, WhatDoesNotPassFailsTheJob) {
  using absl::StatusCode;
  const auto error = [](absl::Status status) {
    return [status] { return ReplyWith(status); };
  };
  const auto norms = [](std::vector<std::string> names, double value) {
    return [=] {
      v1::CommandReply reply;
      for (const std::string& name : names) {
        auto* const norm = reply.mutable_step_prepared()->add_norms();
        norm->set_tensor(name);
        norm->set_squared_norm(value);
      }
      return reply;
    };
  };
  std::vector<std::string> tensors;
  for (const char* stack : {"encoder", "decoder"}) {
    for (const char* weight : {"wi", "wo"}) {
      for (int e = 0; e < 3; ++e) {
        tensors.push_back(absl::StrCat(stack, ".0.moe.", weight, "/", e));
      }
    }
  }
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<FailureCase> cases = {
      {"router load",
       On(&v1::Command::has_load_session, error(absl::InternalError("oops"))),
       nullptr, StatusCode::kInternal, "router 'r': oops"},
      {"worker load", nullptr,
       On(&v1::Command::has_load_session,
          error(absl::ResourceExhaustedError("no memory"))),
       StatusCode::kResourceExhausted, "expert worker 'w': no memory"},
      {"microbatch",
       On(&v1::Command::has_assign_microbatch,
          error(absl::InvalidArgumentError("bad batch"))),
       nullptr, StatusCode::kInvalidArgument, "microbatch 0: router 'r': bad"},
      {"always unavailable",
       On(&v1::Command::has_assign_microbatch,
          error(absl::UnavailableError("no route"))),
       nullptr, StatusCode::kUnavailable,
       "gave up after 0 recoveries without a step further: failed 8 times: "
       "step 1, microbatch 0: router 'r': no route"},
      {"no gradients",
       On(&v1::Command::has_assign_microbatch,
          [] {
            v1::CommandReply reply;
            ModelConfig model = FakeCluster().MakeJob().model;
            *reply.mutable_microbatch_done()->mutable_stats() =
                FakeStats(model, 1, 0);
            return reply;
          }),
       nullptr, StatusCode::kInvalidArgument, "but no gradients"},
      {"no statistics",
       On(&v1::Command::has_assign_microbatch,
          [] { return v1::CommandReply(); }),
       nullptr, StatusCode::kInvalidArgument,
       "stats.layers: expected 2 layers, got 0"},
      {"norm missing", nullptr,
       On(&v1::Command::has_prepare_step, norms({tensors[0]}, 1.0)),
       StatusCode::kInvalidArgument, "expected norms of 12 tensors, got 1"},
      {"norm not finite", nullptr,
       On(&v1::Command::has_prepare_step, norms(tensors, nan)),
       StatusCode::kFailedPrecondition,
       "step 1: the gradient of encoder.0.moe.wi/0 is not finite, the first of "
       "12"},
      {"disk full", nullptr,
       On(&v1::Command::has_write_checkpoint,
          error(absl::ResourceExhaustedError("write: No space left"))),
       StatusCode::kResourceExhausted, "No space left"},
      {"shard missing", nullptr,
       On(&v1::Command::has_write_checkpoint,
          [] { return v1::CommandReply(); }),
       StatusCode::kFailedPrecondition, "' is in no shard"},
  };
  for (const FailureCase& c : cases) {
    SCOPED_TRACE(c.name);
    FakeCluster cluster;
    TrainingJob job = cluster.MakeJob();
    job.recovery.max_recoveries = 0;
    FakeMember& router = cluster.AddRouter("r", c.router);
    cluster.AddWorker("w", c.worker);
    ASSERT_OK(cluster.Submit(job));
    const v1::JobProgress last = cluster.Watch("demo").back();
    EXPECT_EQ(last.state(), v1::JOB_STATE_FAILED);
    EXPECT_EQ(last.status().code(), static_cast<int>(c.code));
    EXPECT_THAT(last.status().message(), HasSubstr(c.message));
    EXPECT_FALSE(IsDirectory(CheckpointPath(job.checkpoint.directory, 3)));
    // The cluster is free for the next job.
    EXPECT_THAT(cluster.Describe().sessions(), IsEmpty());
    EXPECT_THAT(router.commands(), Not(Contains(StartsWith("commit"))));
  }
}

TEST(JobRunTest, IsCancelled) {
  FakeCluster cluster;
  TrainingJob job = cluster.MakeJob();
  job.steps = 1'000'000;
  FakeMember& router = cluster.AddRouter("r");
  cluster.AddWorker("w");
  ASSERT_OK(cluster.Submit(job));
  cluster.Watch("demo", [](const auto& p) { return p.step() >= 2; });
  ASSERT_OK(cluster.Cancel("demo"));
  const std::vector<v1::JobProgress> lines = cluster.Watch("demo");
  ASSERT_EQ(lines.size(), 1u);  // a finished job has one line, its state
  EXPECT_EQ(lines[0].state(), v1::JOB_STATE_CANCELLED);
  EXPECT_OK(cluster.Cancel("demo"));  // already over
  EXPECT_THAT(cluster.Cancel("other"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("'other'")));
  ASSERT_OK_AND_ASSIGN(const auto checkpoints,
                       ListCheckpoints(job.checkpoint.directory));
  EXPECT_THAT(checkpoints, IsEmpty());
  // Another job runs at once.
  TrainingJob next = cluster.MakeJob("next");
  ASSERT_OK(cluster.Submit(next));
  EXPECT_EQ(cluster.Watch("next").back().state(), v1::JOB_STATE_SUCCEEDED);
  router.WaitFor("abort demo/1");
}

// A member may have no memory for both.
TEST(JobRunTest, TheNextJobBeginsOnceTheSessionOfThisOneIsGone) {
  for (const bool cancel : {false, true}) {
    SCOPED_TRACE(cancel ? "cancelled" : "done");
    FakeCluster cluster;
    std::promise<void> reached, release;
    auto released = release.get_future().share();
    FakeMember& router = cluster.AddRouter("r");
    cluster.AddWorker(
        "w",
        [&](const v1::Command& command) -> std::optional<v1::CommandReply> {
          if (command.abort_session().session() == "demo/1") {
            reached.set_value();
            released.wait();
          }
          return std::nullopt;
        });
    TrainingJob job = cluster.MakeJob();
    if (cancel) job.steps = 1'000'000;
    ASSERT_OK(cluster.Submit(job));
    ASSERT_OK(cluster.Submit(cluster.MakeJob("next")));
    cluster.Watch("demo", [](const auto& p) { return p.step() >= 2; });
    std::future<absl::Status> cancelled =
        std::async(std::launch::async, [&]() -> absl::Status {
          return cancel ? cluster.Cancel("demo") : absl::OkStatus();
        });
    reached.get_future().wait();
    router.WaitFor("abort demo/1");
    // Comes behind the end of a job that does not wait.
    EXPECT_OK(cluster.Submit(cluster.MakeJob("last")));
    EXPECT_OK(cluster.Cancel("last"));
    const auto state_of = [&](const std::string& name) {
      return cluster.Watch(name, [](const auto&) { return true; })
          .back()
          .state();
    };
    EXPECT_EQ(state_of("demo"), v1::JOB_STATE_RUNNING);
    EXPECT_EQ(state_of("next"), v1::JOB_STATE_QUEUED);
    release.set_value();
    EXPECT_OK(cancelled.get());
    EXPECT_EQ(cluster.Watch("next").back().state(), v1::JOB_STATE_SUCCEEDED);
  }
}

TEST(JobRunTest, TheTimeLimitEndsTrainingAsAtTheLastStep) {
  LimitedJob limited([](int64_t) { return 25; });
  const v1::JobProgress last = limited.Train();
  EXPECT_EQ(last.step(), 3);
  EXPECT_EQ(last.total_steps(), 3);
  EXPECT_EQ(last.submitted_steps(), 1000);
  EXPECT_EQ(last.elapsed_seconds(), 75);
  EXPECT_EQ(last.eta_seconds(), 0);
  ExpectTrained(limited.job, 3);
}

TEST(JobRunTest, ATimeLimitLeavesTimeForTheCooldown) {
  // The first step is a slow one.
  LimitedJob limited([](int64_t step) { return step == 1 ? 8 : 1; });
  TrainingJob& job = limited.job;
  job.schedule.cooldown_steps = 12;
  const v1::JobProgress last = limited.Train();
  EXPECT_EQ(last.submitted_steps(), 1000);
  EXPECT_EQ(last.total_steps(), last.step());
  // As many as the pace promised, which the first step lowers a little.
  EXPECT_GE(last.step(), 48);
  EXPECT_LE(last.step(), 53);
  job.steps = last.step();
  EXPECT_EQ(last.learning_rate(), MakeSchedule(job).LearningRate(job.steps));
  ExpectTrained(job, job.steps);
}

class NoSender final : public StreamSender<v1::JoinResponse> {
 public:
  absl::Status Send(v1::JoinResponse) override { return absl::OkStatus(); }
  void Finish(const absl::Status&) override {}
  void Cancel() override {}
};

// A restored job fails if its coordinator now runs on a machine that is too
// small for it.
TEST(JobRunTest, ARestoredJobThatItsCoordinatorIsTooSmallForFails) {
  const ScratchDirectory scratch;
  TrainingJob job = MakeFakeJob("demo", scratch);
  job.recovery.replacement_wait_ms = 0;
  Members members({.lease = absl::Hours(24)});
  v1::RegisterMember member;
  member.set_address("unix:/tmp/x");
  member.set_protocol_version(1);
  for (const auto role :
       {v1::MEMBER_ROLE_ROUTER, v1::MEMBER_ROLE_EXPERT_WORKER}) {
    member.set_name(v1::MemberRole_Name(role));
    member.set_role(role);
    ASSERT_OK(members.Register(member, std::make_shared<NoSender>()).status());
  }
  TaskQueue disk, sums;
  ProgressFeed feed((v1::JobProgress()));
  JobEnvironment environment;
  environment.members = &members;
  environment.on_disk = [&](std::function<void()> work) {
    disk.Post(std::move(work));
  };
  environment.sums = &sums;
  environment.memory_bytes = 1;
  environment.next_placement_version = [] { return 1; };
  JobStatus status;
  RunJob({.job = job, .resume = true, .restored = true}, environment,
         std::make_shared<JobMailbox>(), &feed, &status);
  EXPECT_EQ(feed.Latest().state(), v1::JOB_STATE_FAILED);
  EXPECT_THAT(feed.Latest().status().message(), HasSubstr("coordinator"));
}

// A job that is cancelled as it begins releases its folder, although the
// preparation that claimed the folder is still on its way to the job.
TEST(JobRunTest, AJobThatIsCancelledAsItBeginsLeavesItsFolderToOthers) {
  const ScratchDirectory scratch;
  const TrainingJob job = MakeFakeJob("demo", scratch);
  Members members({.lease = absl::Hours(24)});
  const auto mailbox = std::make_shared<JobMailbox>();
  ProgressFeed feed((v1::JobProgress()));
  JobEnvironment environment;
  environment.members = &members;
  environment.on_disk = [&](std::function<void()> work) {
    mailbox->Cancel();
    work();
  };
  absl::Status taken = absl::UnknownError("the job did not end");
  environment.on_change = [&](const v1::JobProgress& progress) {
    if (progress.state() != v1::JOB_STATE_CANCELLED) return;
    taken = FolderClaim::Take(job.checkpoint.directory, "demo").status();
  };
  JobStatus status;
  RunJob({.job = job}, environment, mailbox, &feed, &status);
  EXPECT_EQ(feed.Latest().state(), v1::JOB_STATE_CANCELLED);
  EXPECT_OK(taken);
}

// A router that is about to leave is unavailable, but it may be the only one,
// so it is asked again.
TEST(JobRunTest, ARouterThatIsUnavailableIsAskedAgain) {
  FakeCluster cluster;
  std::atomic<int> loads{0};
  cluster.AddRouter(
      "r", [&](const v1::Command& command) -> std::optional<v1::CommandReply> {
        if (!command.has_load_session() || ++loads > 2) return std::nullopt;
        return ReplyWith(absl::UnavailableError("its disk is away"));
      });
  cluster.AddWorker("w");
  ASSERT_OK(cluster.Submit(cluster.MakeJob()));
  const v1::JobProgress last = cluster.Watch("demo").back();
  EXPECT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
  EXPECT_EQ(last.attempt(), 1);
  EXPECT_EQ(loads, 3);
}

// Indexing a large text takes longer than loading any model.
TEST(JobRunTest, RoutersHaveTimeToIndexTheText) {
  std::atomic<int64_t> hours{0};
  FakeCluster cluster({.lease = absl::Hours(1000), .clock = [&] {
                         return MonotonicTime() + absl::Hours(hours.load());
                       }});
  const TrainingJob job = cluster.MakeJob();
  // The text takes ten hours at the pace of job_files.h, and is a sparse file.
  std::filesystem::resize_file(job.data.train_path, int64_t{36'000} << 18);
  Hold hold;
  cluster.AddRouter("r", hold.At([](const v1::Command& command) {
    return command.has_load_session();
  }));
  cluster.AddWorker("w");
  ASSERT_OK(cluster.Submit(job));
  hold.WaitUntilHeld();
  hours = 11;
  cluster.coordinator().members().Expire();
  EXPECT_EQ(cluster.Describe().members_size(), 2);
  hours = 13;
  cluster.coordinator().members().Expire();
  EXPECT_EQ(cluster.Describe().members_size(), 1);
  hold.Release();
  ASSERT_OK(cluster.Cancel("demo"));
}

TEST(JobRunTest, WaitsForMembers) {
  FakeCluster cluster;
  TrainingJob job = cluster.MakeJob();
  job.min_workers = 2;
  ASSERT_OK(cluster.Submit(job));
  cluster.AddWorker("w0");
  const auto waiting = cluster.Watch("demo", [](const auto& progress) {
    return absl::StrContains(
        progress.status().message(),
        "0 routers (1 needed) and 1 expert workers (2 needed)");
  });
  EXPECT_EQ(waiting.back().state(), v1::JOB_STATE_WAITING);
  cluster.AddRouter("r");
  cluster.AddWorker("w1");
  const v1::JobProgress last = cluster.Watch("demo").back();
  EXPECT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
}

TEST(JobRunTest, ARouterOfAnotherReleaseIsLeftOut) {
  FakeCluster cluster;
  const TrainingJob job = cluster.MakeJob();
  cluster.AddRouter(
      "old", [](const v1::Command& command) -> std::optional<v1::CommandReply> {
        if (!command.has_load_session()) return std::nullopt;
        return ReplyWith(absl::UnimplementedError("other segments"));
      });
  cluster.AddWorker("w");
  ASSERT_OK(cluster.Submit(job));
  // The job says what it waits for.
  const auto waiting = cluster.Watch("demo", [](const auto& progress) {
    return absl::StrContains(progress.status().message(), "other segments");
  });
  EXPECT_EQ(waiting.back().state(), v1::JOB_STATE_WAITING);
  EXPECT_THAT(waiting.back().status().message(), HasSubstr("'old'"));
  cluster.AddRouter("new");
  const v1::JobProgress last = cluster.Watch("demo").back();
  EXPECT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
  EXPECT_EQ(last.status().message(), "");
}

TEST(JobRunTest, ADrainEndsTheJobWithACheckpoint) {
  FakeCluster cluster;
  TrainingJob job = cluster.MakeJob();
  job.steps = 1'000'000;
  cluster.AddRouter("r");
  cluster.AddWorker("w");
  ASSERT_OK(cluster.Submit(job));
  cluster.Watch("demo", [](const auto& p) { return p.step() >= 2; });
  cluster.coordinator().Drain(absl::Minutes(1));
  const v1::DescribeResponse state =
      cluster.coordinator().Describe(v1::DescribeRequest(), {});
  ASSERT_EQ(state.jobs_size(), 1);
  EXPECT_EQ(state.jobs(0).state(), v1::JOB_STATE_CANCELLED);
  EXPECT_THAT(state.jobs(0).status().message(), HasSubstr("resume"));
  ExpectTrained(job, state.jobs(0).step());
  EXPECT_THAT(cluster.Submit(cluster.MakeJob("next")),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("")));
}

}  // namespace
}  // namespace gshard
