#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <mutex>
#include <optional>
#include <ostream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/commands.h"
#include "proto/gshard/v1/coordinator.grpc.pb.h"
#include "services/rpc/wire/status.h"
#include "tests/client/command_run.h"
#include "tests/client/scratch_folder.h"
#include "tests/client/unix_server.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kJob[] =
    "name: 'tiny'\n"
    "data { train_path: 'data/train.tsv' }\n"
    "checkpoint { directory: '/checkpoints' }\n";

// A coordinator that accepts every job and reports the progress set by the
// test.
class FakeTrainCoordinator final : public v1::CoordinatorService::Service {
 public:
  const std::string& address() const { return server_.address(); }

  // Sets the lines that WatchJob() streams; without any there is no job.
  void Tell(std::vector<v1::JobProgress> lines) {
    std::lock_guard<std::mutex> lock(mutex_);
    lines_ = std::move(lines);
  }

  // Makes the next WatchJob() end with UNAVAILABLE after `line`.
  void TellAndLeave(v1::JobProgress line) {
    std::lock_guard<std::mutex> lock(mutex_);
    last_words_ = std::move(line);
  }

  // Makes SubmitJob() fail with ALREADY_EXISTS and ListJobs() return `job`.
  void HaveJob(const v1::JobProgress& job) {
    std::lock_guard<std::mutex> lock(mutex_);
    job_ = job;
    refusals_ = {absl::AlreadyExistsError("there is such a job")};
  }

  // Sets the errors of the next calls of SubmitJob(), in order; the last is
  // also that of all later ones.
  void Refuse(std::vector<absl::Status> refusals) {
    std::lock_guard<std::mutex> lock(mutex_);
    refusals_ = {refusals.begin(), refusals.end()};
  }

  // Makes it accept jobs to resume that have no checkpoint.
  void HaveNoCheckpoint() {
    std::lock_guard<std::mutex> lock(mutex_);
    anew_ = true;
  }

  v1::SubmitJobRequest submitted() {
    std::lock_guard<std::mutex> lock(mutex_);
    return submitted_;
  }

  grpc::Status SubmitJob(grpc::ServerContext*,
                         const v1::SubmitJobRequest* request,
                         v1::SubmitJobResponse* response) override {
    std::lock_guard<std::mutex> lock(mutex_);
    submitted_ = *request;
    response->set_job(request->job().name());
    response->set_begins_anew(request->resume() && anew_);
    if (refusals_.empty()) return grpc::Status::OK;
    const absl::Status refusal = refusals_.front();
    if (refusals_.size() > 1) refusals_.pop_front();
    return ToGrpcStatus(refusal);
  }

  grpc::Status ListJobs(grpc::ServerContext*, const v1::ListJobsRequest*,
                        v1::ListJobsResponse* response) override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!job_.has_value()) return grpc::Status(grpc::NOT_FOUND, "no such job");
    *response->add_jobs()->mutable_progress() = *job_;
    return grpc::Status::OK;
  }

  grpc::Status CancelJob(grpc::ServerContext*,
                         const v1::CancelJobRequest* request,
                         v1::CancelJobResponse*) override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!job_.has_value() || job_->job() != request->job()) {
      return grpc::Status(grpc::NOT_FOUND, "no such job");
    }
    if (job_->state() == v1::JOB_STATE_RUNNING) {
      job_->set_state(v1::JOB_STATE_CANCELLED);
    }
    return grpc::Status::OK;
  }

  grpc::Status WatchJob(grpc::ServerContext*,
                        const v1::WatchJobRequest* request,
                        grpc::ServerWriter<v1::JobProgress>* writer) override {
    std::vector<v1::JobProgress> lines;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (const auto line = std::exchange(last_words_, std::nullopt)) {
        writer->Write(*line);
        return grpc::Status(grpc::UNAVAILABLE, "shutting down");
      }
      lines = lines_;
    }
    if (lines.empty()) return grpc::Status(grpc::NOT_FOUND, "no such job");
    for (v1::JobProgress& line : lines) {
      line.set_job(request->job());
      writer->Write(line);
    }
    return grpc::Status::OK;
  }

 private:
  std::mutex mutex_;
  v1::SubmitJobRequest submitted_;             // guarded by mutex_
  bool anew_ = false;                          // guarded by mutex_
  std::deque<absl::Status> refusals_;          // guarded by mutex_
  std::optional<v1::JobProgress> job_;         // guarded by mutex_
  std::vector<v1::JobProgress> lines_;         // guarded by mutex_
  std::optional<v1::JobProgress> last_words_;  // guarded by mutex_
  UnixServer server_{this, v1::CoordinatorService::service_full_name()};
};

v1::JobProgress Line(v1::JobState state, int64_t step) {
  v1::JobProgress line;
  line.set_state(state);
  line.set_step(step);
  line.set_total_steps(20);
  line.set_loss(4.25);
  line.set_eta_seconds(61);
  return line;
}

TEST(CancelCommandTest, SaysWhatBecameOfTheJob) {
  FakeTrainCoordinator coordinator;
  v1::JobProgress job = Line(v1::JOB_STATE_RUNNING, 7);
  job.set_job("tiny");
  coordinator.HaveJob(job);
  const auto cancel = [&](const char* name) {
    return CommandRun(CancelCommand,
                      {name, "--coordinator", coordinator.address()});
  };
  const CommandRun run = cancel("tiny");
  ASSERT_OK(run.status);
  EXPECT_EQ(run.out, "job tiny was cancelled\n");
  job.set_state(v1::JOB_STATE_SUCCEEDED);
  coordinator.HaveJob(job);
  const CommandRun late = cancel("tiny");
  ASSERT_OK(late.status);
  EXPECT_EQ(late.out, "job tiny was over already: succeeded\n");
  const CommandRun other = cancel("other");
  EXPECT_THAT(other.status,
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no such job")));
  EXPECT_EQ(other.out, "");
}

TEST(TrainCommandTest, SubmitsAbsolutePaths) {
  FakeTrainCoordinator coordinator;
  const ScratchFolder folder;
  const CommandRun run(
      TrainCommand, {folder.Write("job", kJob), "--resume", "--time_limit=90s",
                     "--coordinator", coordinator.address()});
  ASSERT_OK(run.status);
  EXPECT_THAT(run.out, HasSubstr("gshard watch tiny"));
  const v1::SubmitJobRequest request = coordinator.submitted();
  EXPECT_TRUE(request.resume());
  EXPECT_EQ(request.job().data().train_path(),
            (std::filesystem::current_path() / "data/train.tsv").string());
  EXPECT_EQ(request.job().data().dev_path(), "");
  EXPECT_EQ(request.job().checkpoint().directory(), "/checkpoints");
  EXPECT_EQ(request.job().time_limit_seconds(), 90);
}

TEST(TrainCommandTest, SaysThatAJobToResumeBeginsAnew) {
  FakeTrainCoordinator coordinator;
  coordinator.Tell({Line(v1::JOB_STATE_SUCCEEDED, 20)});
  const ScratchFolder folder;
  const std::string job = folder.Write("job", kJob);
  const auto train = [&](const char* follow) {
    const CommandRun run(
        TrainCommand,
        {job, "--resume", follow, "--coordinator", coordinator.address()});
    EXPECT_OK(run.status);
    return run.error;
  };
  EXPECT_EQ(train("--follow"), "");
  coordinator.HaveNoCheckpoint();
  for (const char* follow : {"--follow", "--json"}) {
    EXPECT_EQ(train(follow),
              "gshard: job tiny begins anew: there is no checkpoint in "
              "/checkpoints\n");
  }
}

TEST(TrainCommandTest, ChecksAJob) {
  FakeTrainCoordinator coordinator;
  const ScratchFolder folder;
  const std::string job = folder.Write("job", kJob);
  const CommandRun run(
      TrainCommand, {job, "--check", "--coordinator", coordinator.address()});
  ASSERT_OK(run.status);
  EXPECT_EQ(run.out, "job tiny would be accepted\n");
  EXPECT_TRUE(coordinator.submitted().validate_only());
  EXPECT_TRUE(IsUsageError(
      CommandRun(TrainCommand, {job, "--check", "--follow"}).status));
}

TEST(TrainCommandTest, FollowsUntilTheJobSucceeds) {
  FakeTrainCoordinator coordinator;
  v1::JobProgress waiting = Line(v1::JOB_STATE_WAITING, 0);
  waiting.mutable_status()->set_message("no worker");
  std::vector<v1::JobProgress> lines = {waiting,
                                        Line(v1::JOB_STATE_RUNNING, 10),
                                        Line(v1::JOB_STATE_SUCCEEDED, 20)};
  for (const size_t i : {1u, 2u}) {
    lines[i].set_text_pairs(7);
    lines[i].set_bad_lines(1);
  }
  coordinator.Tell(lines);
  const ScratchFolder folder;
  const CommandRun run(TrainCommand, {folder.Write("job", kJob), "--follow",
                                      "--coordinator", coordinator.address()});
  ASSERT_OK(run.status);
  EXPECT_THAT(run.out, AllOf(HasSubstr("job tiny: waiting, no worker\n"),
                             HasSubstr("4.25"), HasSubstr("00:01:01"),
                             HasSubstr("job tiny: succeeded at step 20")));
  const std::string text =
      "warning: text: 7 pairs; skipped 1 bad lines, 0 longer than max_length\n";
  EXPECT_THAT(run.out, HasSubstr("no worker\n" + text));
  EXPECT_EQ(run.out.find(text), run.out.rfind(text));  // once
}

TEST(WatchCommandTest, SaysThatItWaitsForTheCoordinator) {
  FakeTrainCoordinator coordinator;
  coordinator.TellAndLeave(Line(v1::JOB_STATE_RUNNING, 10));
  coordinator.Tell({Line(v1::JOB_STATE_SUCCEEDED, 20)});
  const CommandRun run(WatchCommand,
                       {"tiny", "--coordinator", coordinator.address()});
  ASSERT_OK(run.status);
  EXPECT_EQ(run.error,
            absl::StrCat("gshard: waiting for up to 1m: coordinator at ",
                         coordinator.address(), ": shutting down\n"));
}

// A batch system may restart a train command: with --follow and --resume it
// follows the existing job and exits as that job does.
class ResumingTrainTest : public ::testing::Test {
 protected:
  ResumingTrainTest() {
    coordinator_.Tell({Line(v1::JOB_STATE_SUCCEEDED, 20)});
  }

  void HaveJob(v1::JobState state, int64_t total_steps = 20) {
    v1::JobProgress job = Line(state, 10);
    job.set_total_steps(total_steps);
    coordinator_.HaveJob(job);
  }

  CommandRun Train(const std::vector<std::string>& flags = {"--follow",
                                                            "--resume"}) {
    std::vector<std::string> arguments = {path_, "--coordinator",
                                          coordinator_.address()};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    return CommandRun(TrainCommand, arguments);
  }

  static absl::Status AllStepsAreDone() {
    return absl::OutOfRangeError(
        "steps: expected more than the 20 of the checkpoint /c/step-20, got "
        "20");
  }

  FakeTrainCoordinator coordinator_;
  const ScratchFolder folder_;
  const std::string path_ =
      folder_.Write("job", absl::StrCat(kJob, "steps: 20\n"));
};

TEST_F(ResumingTrainTest, FollowsAJobThatRuns) {
  HaveJob(v1::JOB_STATE_RUNNING);
  const CommandRun run = Train();
  EXPECT_OK(run.status);
  EXPECT_THAT(run.out, HasSubstr("job tiny: succeeded"));
  EXPECT_THAT(run.error,
              AllOf(StartsWith("gshard: job tiny is running already"),
                    HasSubstr("changes of its file are not applied"),
                    HasSubstr("there is such a job")));
  HaveJob(v1::JOB_STATE_QUEUED);
  EXPECT_OK(Train().status);
  EXPECT_EQ(ExitCodeOf(Train({"--follow"}).status), 70);
  EXPECT_EQ(ExitCodeOf(Train({"--resume"}).status), 1);
}

TEST_F(ResumingTrainTest, FollowsAJobThatHasAllOfItsSteps) {
  HaveJob(v1::JOB_STATE_SUCCEEDED);
  coordinator_.Refuse({AllStepsAreDone()});
  const CommandRun run = Train();
  EXPECT_OK(run.status);
  EXPECT_THAT(run.out, HasSubstr("job tiny: succeeded"));
  EXPECT_THAT(run.error, AllOf(StartsWith("gshard: job tiny is done already"),
                               HasSubstr("expected more than the 20")));
  // It ended while the first submission was answered.
  HaveJob(v1::JOB_STATE_SUCCEEDED);
  coordinator_.Refuse(
      {absl::AlreadyExistsError("there is such a job"), AllStepsAreDone()});
  EXPECT_OK(Train().status);
  // The time limit had reduced the total steps.
  v1::JobProgress limited = Line(v1::JOB_STATE_SUCCEEDED, 10);
  limited.set_total_steps(10);
  limited.set_submitted_steps(20);
  coordinator_.HaveJob(limited);
  coordinator_.Refuse({AllStepsAreDone()});
  EXPECT_OK(Train().status);

  HaveJob(v1::JOB_STATE_SUCCEEDED, 10);
  coordinator_.Refuse({AllStepsAreDone()});
  EXPECT_EQ(ExitCodeOf(Train().status), 70);
  HaveJob(v1::JOB_STATE_FAILED);
  coordinator_.Refuse({AllStepsAreDone()});
  EXPECT_EQ(ExitCodeOf(Train().status), 70);
}

// Above all a mistake in the file of a job that is done is no success.
TEST_F(ResumingTrainTest, FailsIfTheSubmissionIsRefusedForAnotherReason) {
  for (const absl::Status& refusal :
       {absl::InvalidArgumentError("data.train_path: no such file"),
        absl::FailedPreconditionError("seed: expected 1, got 2"),
        absl::AlreadyExistsError("checkpoint.directory: is that of 'other'"),
        absl::PermissionDeniedError("serve_as: needs the role admin")}) {
    HaveJob(v1::JOB_STATE_SUCCEEDED);
    coordinator_.Refuse({refusal});
    const CommandRun run = Train();
    EXPECT_THAT(
        run.status,
        StatusIs(refusal.code(), HasSubstr(std::string(refusal.message()))));
    EXPECT_EQ(ExitCodeOf(run.status), 70);
    EXPECT_EQ(run.out, "");
  }
  coordinator_.Refuse({absl::UnavailableError("the disk is away")});
  EXPECT_EQ(ExitCodeOf(Train().status), 75);
}

// It was restarted without its state before it told of the job.
TEST(TrainCommandTest, AJobThatTheCoordinatorForgotMayBeSubmittedAgain) {
  FakeTrainCoordinator coordinator;
  const ScratchFolder folder;
  const CommandRun train(
      TrainCommand, {folder.Write("job", kJob), "--follow", "--coordinator",
                     coordinator.address()});
  EXPECT_THAT(train.status, StatusIs(absl::StatusCode::kUnavailable,
                                     HasSubstr("submit it again")));
  EXPECT_EQ(ExitCodeOf(train.status), 75);
  const CommandRun watch(WatchCommand,
                         {"tiny", "--coordinator", coordinator.address()});
  EXPECT_THAT(watch.status,
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no such job")));
  EXPECT_EQ(ExitCodeOf(watch.status), 70);
}

// It was restarted without its state when the job was done.
TEST_F(ResumingTrainTest, AJobThatTheCoordinatorForgotMayBeDone) {
  coordinator_.Refuse({AllStepsAreDone()});
  const CommandRun run = Train();
  EXPECT_OK(run.status);
  EXPECT_EQ(run.out, "");
  EXPECT_THAT(run.error, AllOf(StartsWith("gshard: job tiny is done"),
                               HasSubstr("expected more than the 20")));
  coordinator_.Refuse({absl::AlreadyExistsError("there are checkpoints")});
  EXPECT_EQ(ExitCodeOf(Train().status), 70);
}

TEST(TrainCommandTest, FailsAsTheJobDoes) {
  FakeTrainCoordinator coordinator;
  v1::JobProgress failed = Line(v1::JOB_STATE_FAILED, 3);
  failed.mutable_status()->set_code(
      static_cast<int>(absl::StatusCode::kResourceExhausted));
  failed.mutable_status()->set_message("disk full");
  coordinator.Tell({failed});
  const CommandRun run(WatchCommand,
                       {"tiny", "--coordinator", coordinator.address()});
  EXPECT_THAT(run.status, StatusIs(absl::StatusCode::kResourceExhausted,
                                   "job tiny: disk full"));
  EXPECT_EQ(ExitCodeOf(run.status), 70);
  failed.set_retryable(true);
  coordinator.Tell({failed});
  EXPECT_EQ(ExitCodeOf(CommandRun(WatchCommand, {"tiny", "--coordinator",
                                                 coordinator.address()})
                           .status),
            75);

  coordinator.Tell({Line(v1::JOB_STATE_CANCELLED, 3)});
  EXPECT_THAT(
      CommandRun(WatchCommand, {"tiny", "--coordinator", coordinator.address()})
          .status,
      StatusIs(absl::StatusCode::kCancelled,
               HasSubstr("job tiny was cancelled")));
}

// As `gshard watch JOB | head` once head has ended: not a disk that is full.
TEST(TrainCommandDeathTest, TheWatchEndsWithItsReader) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto watch = [] {
    FakeTrainCoordinator coordinator;
    coordinator.Tell({Line(v1::JOB_STATE_RUNNING, 10)});
    int ends[2];
    if (pipe(ends) != 0 || dup2(ends[1], STDOUT_FILENO) < 0) exit(1);
    close(ends[0]);
    Console console{-1, &std::cout, &std::cerr,
                    [](const char*) -> const char* { return nullptr; }};
    exit(ExitCodeOf(WatchCommand(
        {"tiny", "--coordinator", coordinator.address()}, console)));
  };
  EXPECT_EXIT(watch(), ::testing::ExitedWithCode(kExitNoReader), "");
}

TEST(TrainCommandTest, TheWatchEndsWithItsOutput) {
  FakeTrainCoordinator coordinator;
  coordinator.Tell({Line(v1::JOB_STATE_RUNNING, 10)});
  std::ostream out(nullptr);
  std::ostringstream error;
  Console console{-1, &out, &error,
                  [](const char*) -> const char* { return nullptr; }};
  const absl::Status status =
      WatchCommand({"tiny", "--coordinator", coordinator.address()}, console);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted,
                               HasSubstr("the output could not be written")));
  EXPECT_EQ(ExitCodeOf(status), 1);
}

TEST(TrainCommandTest, RefusesABadJobBeforeAnyCall) {
  const ScratchFolder folder;
  const std::string job =
      folder.Write("job", "name: 'x' checkpoint { directory: 'y' }\n");
  EXPECT_THAT(
      CommandRun(TrainCommand, {job}).status,
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("train_path")));
  EXPECT_TRUE(IsUsageError(CommandRun(TrainCommand, {}).status));
}

}  // namespace
}  // namespace gshard
