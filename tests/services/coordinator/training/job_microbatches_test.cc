// Which routers get a step's microbatches, at first and after failures.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "tests/services/coordinator/fake_cluster.h"
#include "tests/services/coordinator/hold.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Not;

// The commands that begin with `prefix`.
std::vector<std::string> Only(const std::vector<std::string>& commands,
                              const std::string& prefix) {
  std::vector<std::string> out;
  for (const std::string& command : commands) {
    if (absl::StartsWith(command, prefix)) out.push_back(command);
  }
  return out;
}

TEST(JobMicrobatchesTest, ALostRoutersMicrobatchesGoToOthers) {
  FakeCluster cluster;
  TrainingJob job = cluster.MakeJob();
  job.min_routers = 2;
  std::promise<void> stuck;
  std::promise<void> release;
  auto released = release.get_future().share();
  std::atomic<bool> first{true};
  FakeMember& lost = cluster.AddRouter(
      "lost",
      [&](const v1::Command& command) -> std::optional<v1::CommandReply> {
        if (!command.has_assign_microbatch()) return std::nullopt;
        if (first.exchange(false)) stuck.set_value();
        released.wait();
        return ReplyWith(absl::CancelledError("left"));
      });
  FakeMember& stays = cluster.AddRouter("stays");
  cluster.AddWorker("w");
  ASSERT_OK(cluster.Submit(job));
  stuck.get_future().wait();
  std::thread leave([&] { lost.Leave(); });
  cluster.Watch("demo", [&](const v1::JobProgress& progress) {
    return progress.step() >= 1;
  });
  release.set_value();
  leave.join();
  const v1::JobProgress last = cluster.Watch("demo").back();
  ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
  ExpectTrained(job, 3);
  EXPECT_THAT(stays.commands(),
              AllOf(Contains("assign 1/0/1"), Not(Contains("assign 2/0/1"))));
}

// It stays a member while it finishes translations.
TEST(JobMicrobatchesTest, ARouterThatWantsToLeaveIsLostToTheJobAtOnce) {
  FakeCluster cluster;
  TrainingJob job = cluster.MakeJob();
  job.min_routers = 2;
  std::promise<void> stuck;
  std::promise<void> release;
  auto released = release.get_future().share();
  std::atomic<bool> first{true};
  FakeMember& leaves = cluster.AddRouter(
      "leaves",
      [&](const v1::Command& command) -> std::optional<v1::CommandReply> {
        if (!command.has_assign_microbatch()) return std::nullopt;
        if (first.exchange(false)) stuck.set_value();
        released.wait();
        return ReplyWith(absl::CancelledError("interrupted"));
      });
  FakeMember& stays = cluster.AddRouter("stays");
  cluster.AddWorker("w");
  ASSERT_OK(cluster.Submit(job));
  stuck.get_future().wait();
  leaves.SayLeaving();
  leaves.WaitForInterrupt("demo/1");
  const v1::JobProgress last = cluster.Watch("demo").back();
  ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
  EXPECT_EQ(last.attempt(), 1);
  ExpectTrained(job, 3);
  EXPECT_THAT(stays.commands(), Contains("assign 1/0/1"));
  EXPECT_EQ(cluster.Describe().members_size(), 3);
  release.set_value();
  leaves.WaitFor("abort demo/1");
  EXPECT_THAT(Only(leaves.commands(), "assign"), ElementsAre("assign 1/0/0"));
  // Nor does a later one get it.
  job.name = "later";
  job.checkpoint.directory += "-later";
  job.min_routers = 1;
  ASSERT_OK(cluster.Submit(job));
  EXPECT_EQ(cluster.Watch("later").back().state(), v1::JOB_STATE_SUCCEEDED);
  EXPECT_THAT(leaves.commands(), Not(Contains("load later/1")));
}

TEST(JobMicrobatchesTest, ARouterThatJoinsLaterHelps) {
  FakeCluster cluster;
  TrainingJob job = cluster.MakeJob();
  std::promise<void> stuck;
  std::promise<void> release;
  auto released = release.get_future().share();
  std::atomic<bool> first{true};
  cluster.AddRouter(
      "a", [&](const v1::Command& command) -> std::optional<v1::CommandReply> {
        if (command.has_assign_microbatch() && first.exchange(false)) {
          stuck.set_value();
          released.wait();
        }
        return std::nullopt;
      });
  cluster.AddWorker("w");
  ASSERT_OK(cluster.Submit(job));
  stuck.get_future().wait();
  std::promise<void> helped;
  std::atomic<bool> told{false};
  cluster.AddRouter(
      "b", [&](const v1::Command& command) -> std::optional<v1::CommandReply> {
        if (command.has_assign_microbatch() && !told.exchange(true)) {
          helped.set_value();
        }
        return std::nullopt;
      });
  helped.get_future().wait();
  release.set_value();
  const v1::JobProgress last = cluster.Watch("demo").back();
  ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
  ExpectTrained(job, 3);
}

// It need not plan the order of the text from the beginning in its first step.
TEST(JobMicrobatchesTest, ARouterThatJoinsLaterIsToldWhatIsDone) {
  FakeCluster cluster;
  TrainingJob job = cluster.MakeJob();
  job.checkpoint.every_steps = 1;
  job.checkpoint.asynchronous = false;
  Hold hold;
  cluster.AddRouter("a", hold.At(IsAssign(3)));
  cluster.AddWorker("w");
  ASSERT_OK(cluster.Submit(job));
  hold.WaitUntilHeld();
  std::promise<int64_t> told;
  cluster.AddRouter(
      "b", [&](const v1::Command& command) -> std::optional<v1::CommandReply> {
        if (command.has_load_session()) {
          told.set_value(command.load_session().router().step());
        }
        return std::nullopt;
      });
  EXPECT_EQ(told.get_future().get(), 2);
  hold.Release();
  const v1::JobProgress last = cluster.Watch("demo").back();
  ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
  ExpectTrained(job, 3);
}

// Its disk with the text is not mounted, for example.
TEST(JobMicrobatchesTest, ARouterThatJoinsLaterAndCannotLoadIsLeftOut) {
  FakeCluster cluster;
  const TrainingJob job = cluster.MakeJob();
  std::promise<void> stuck, release, refused;
  auto released = release.get_future().share();
  std::atomic<bool> first{true};
  cluster.AddRouter(
      "a", [&](const v1::Command& command) -> std::optional<v1::CommandReply> {
        if (command.has_assign_microbatch() &&
            command.assign_microbatch().step() == 2 && first.exchange(false)) {
          stuck.set_value();
          released.wait();
        }
        return std::nullopt;
      });
  cluster.AddWorker("w");
  ASSERT_OK(cluster.Submit(job));
  stuck.get_future().wait();
  cluster.AddRouter(
      "b", [&](const v1::Command& command) -> std::optional<v1::CommandReply> {
        if (!command.has_load_session()) return std::nullopt;
        refused.set_value();
        return ReplyWith(absl::NotFoundError("no such text"));
      });
  refused.get_future().wait();
  release.set_value();
  const v1::JobProgress last = cluster.Watch("demo").back();
  ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
  ExpectTrained(job, 3);
}

v1::TextLoaded TextOf(const std::string& digest) {
  v1::TextLoaded text;
  text.set_pairs(2);
  text.set_digest(digest);
  return text;
}

// Returns once it has been told to drop the job `times` times.
void AwaitAborts(const FakeMember& router, const std::string& session,
                 size_t times) {
  while (Only(router.commands(), "abort " + session).size() < times) {
    std::this_thread::yield();
  }
}

// Its text was not copied, for example.
TEST(JobMicrobatchesTest, ARouterThatWasLeftOutStaysSoWithoutOthers) {
  std::atomic<int64_t> seconds{0};
  FakeCluster cluster({.lease = absl::Hours(24), .clock = [&] {
                         return MonotonicTime() + absl::Seconds(seconds.load());
                       }});
  const TrainingJob job = cluster.MakeJob();
  Hold hold;
  FakeMember& fit = cluster.AddRouter("fit", hold.At(IsAssign(2)));
  fit.SetText(TextOf("the text"));
  cluster.AddWorker("w");
  ASSERT_OK(cluster.Submit(job));
  hold.WaitUntilHeld();
  FakeMember& unfit = cluster.AddRouter("unfit");
  unfit.SetText(TextOf("another"));
  AwaitAborts(unfit, "demo/1", 1);
  seconds = 61;
  hold.Lose(cluster, fit);
  AwaitAborts(unfit, "demo/1", 2);
  cluster.AddRouter("new").SetText(TextOf("the text"));
  const v1::JobProgress last = cluster.Watch("demo").back();
  ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
  EXPECT_EQ(last.attempt(), 1);
  ExpectTrained(job, 3);
}

TEST(JobMicrobatchesTest, ARouterThatWasLeftOutFailsNoLaterAttempt) {
  FakeCluster cluster;
  TrainingJob job = cluster.MakeJob();
  job.recovery.replacement_wait_ms = 0;
  Hold hold;
  FakeMember& fit = cluster.AddRouter("fit", hold.At(IsAssign(2)));
  fit.SetText(TextOf("the text"));
  FakeMember& lost = cluster.AddWorker("lost");
  ASSERT_OK(cluster.Submit(job));
  hold.WaitUntilHeld();
  FakeMember& unfit = cluster.AddRouter("unfit");
  unfit.SetText(TextOf("another"));
  AwaitAborts(unfit, "demo/1", 1);
  hold.Lose(cluster, fit);
  lost.Leave();
  cluster.AddWorker("w");
  // The job says what it waits for.
  const auto waiting = cluster.Watch("demo", [](const auto& progress) {
    return absl::StrContains(progress.status().message(),
                             "waits for other routers than 'unfit'");
  });
  EXPECT_EQ(waiting.back().state(), v1::JOB_STATE_RECOVERING);
  cluster.AddRouter("new").SetText(TextOf("the text"));
  const v1::JobProgress last = cluster.Watch("demo").back();
  ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
  EXPECT_EQ(last.attempt(), 2);
  ExpectTrained(job, 3);
}

TEST(JobMicrobatchesTest, APassingFailureIsTriedAgain) {
  FakeCluster cluster;
  const TrainingJob job = cluster.MakeJob();
  FakeMember& router = cluster.AddRouter(
      "r", [](const v1::Command& command) -> std::optional<v1::CommandReply> {
        if (!command.has_assign_microbatch()) return std::nullopt;
        const auto& assign = command.assign_microbatch();
        if (assign.step() != 2 || assign.microbatch() != 3 ||
            assign.attempt() > 1) {
          return std::nullopt;
        }
        return ReplyWith(absl::UnavailableError("a worker is slow to come"));
      });
  FakeMember& worker = cluster.AddWorker(
      "w", [](const v1::Command& command) -> std::optional<v1::CommandReply> {
        if (!command.has_prepare_step()) return std::nullopt;
        const auto& attempts = command.prepare_step().attempts();
        EXPECT_EQ(attempts.size(), 4);
        EXPECT_EQ(attempts[3], command.prepare_step().step() == 2 ? 2 : 0);
        return std::nullopt;
      });
  ASSERT_OK(cluster.Submit(job));
  const v1::JobProgress last = cluster.Watch("demo").back();
  ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
  ExpectTrained(job, 3);
  EXPECT_THAT(Only(router.commands(), "assign 2/3"),
              ElementsAre("assign 2/3/0", "assign 2/3/1", "assign 2/3/2"));
  EXPECT_THAT(worker.commands(), Contains("commit 3"));
}

// A microbatch that makes way for the first one has not failed: it may do so as
// often as attempts may fail, and then fail once.
TEST(JobMicrobatchesTest, ToMakeWayIsNoFailure) {
  FakeCluster cluster({.retry_delay = absl::Milliseconds(1)});
  TrainingJob job = cluster.MakeJob();
  job.min_routers = 2;
  std::promise<void> failed;
  auto has_failed = failed.get_future().share();
  const auto intercept =
      [&](const v1::Command& command) -> std::optional<v1::CommandReply> {
    if (!command.has_assign_microbatch()) return std::nullopt;
    const auto& assign = command.assign_microbatch();
    if (assign.step() != 2) return std::nullopt;
    if (assign.microbatch() == 0) has_failed.wait();
    if (assign.microbatch() != 3 || assign.attempt() > 8) return std::nullopt;
    if (assign.attempt() < 8) return ReplyWith(absl::AbortedError("full"));
    failed.set_value();
    return ReplyWith(absl::UnavailableError("a worker is slow to come"));
  };
  cluster.AddRouter("r0", intercept);
  cluster.AddRouter("r1", intercept);
  cluster.AddWorker("w");
  ASSERT_OK(cluster.Submit(job));
  const v1::JobProgress last = cluster.Watch("demo").back();
  ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
  EXPECT_EQ(last.attempt(), 1);
  ExpectTrained(job, 3);
}

}  // namespace
}  // namespace gshard
