// SIGTERM to a program under load: health turns to not serving at once, calls
// are accepted for the drain delay, accepted calls are finished, and the
// program exits with 0.

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <set>
#include <string>
#include <thread>

#include "client/child_process.h"
#include "tests/integration/cluster.h"
#include "tests/integration/names_job.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::_;
using ::testing::IsEmpty;
using Clock = std::chrono::steady_clock;

// Whether grpc.health.v1 answers SERVING (1). The messages used here have the
// same fields as those of the health service.
bool IsServing(const std::shared_ptr<grpc::Channel>& channel) {
  grpc::TemplatedGenericStub<v1::WatchJobRequest, v1::Status> stub(channel);
  grpc::ClientContext context;
  SetDeadline(context);
  v1::WatchJobRequest request;
  v1::Status response;
  std::promise<grpc::Status> done;
  stub.UnaryCall(&context, "/grpc.health.v1.Health/Check", {}, &request,
                 &response,
                 [&](grpc::Status status) { done.set_value(status); });
  return done.get_future().get().ok() && response.code() == 1;
}

v1::TranslateRequest Request(int sentences) {
  v1::TranslateRequest request;
  request.set_model("names");
  request.mutable_options()->set_beam_size(4);
  for (int i = 0; i < sentences; ++i) {
    v1::Sentence& sentence = *request.add_sentences();
    sentence.set_text("Vereinigte Staaten");
    sentence.set_source_language("de");
  }
  return request;
}

// Translates continuously on several threads until stopped.
class Load {
 public:
  Load(std::shared_ptr<grpc::Channel> channel, int threads)
      : channel_(std::move(channel)) {
    for (int i = 0; i < threads; ++i) {
      threads_.emplace_back([this] { Run(); });
    }
  }
  ~Load() { Stop(); }

  int64_t calls() const { return calls_; }

  // Returns the statuses of failed calls.
  std::vector<absl::Status> Stop() {
    stopping_ = true;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    return failures_;
  }

 private:
  void Run() {
    const auto stub = v1::TranslationService::NewStub(channel_);
    while (!stopping_) {
      grpc::ClientContext context;
      SetDeadline(context);
      v1::TranslateResponse response;
      const grpc::Status status =
          stub->Translate(&context, Request(8), &response);
      ++calls_;
      if (status.ok()) continue;
      std::lock_guard<std::mutex> lock(mutex_);
      failures_.push_back(FromGrpcStatus(status));
    }
  }

  const std::shared_ptr<grpc::Channel> channel_;
  std::atomic<bool> stopping_ = false;
  std::atomic<int64_t> calls_ = 0;
  std::mutex mutex_;
  std::vector<absl::Status> failures_;  // guarded by mutex_
  std::vector<std::thread> threads_;
};

class DrainTest : public ::testing::Test {
 protected:
  DrainTest() : cluster_(1, 1) {
    TrainingJob job = NamesJob(directory_.path() + "/checkpoints");
    job.steps = 2;
    job.serve_as = "names";
    const auto trained = cluster_.Train(job);
    EXPECT_TRUE(trained.ok()) << trained.status();
  }

  // Starts a router program and waits until it serves.
  void StartRouter(const std::vector<std::string>& flags) {
    const std::string address = "unix:" + directory_.path() + "/r";
    std::vector<std::string> argv = {
        std::string(GSHARD_PROGRAMS) + "/gshard_router", "--listen=" + address,
        "--coordinator=" + cluster_.coordinator_address()};
    argv.insert(argv.end(), flags.begin(), flags.end());
    auto router =
        ChildProcess::Start("router", argv, directory_.path() + "/r.log");
    ASSERT_TRUE(router.ok()) << router.status();
    router_ = *std::move(router);
    channel_ = *CreateChannel(address);
    ASSERT_TRUE(Eventually([&] {
      grpc::ClientContext context;
      SetDeadline(context);
      v1::TranslateResponse response;
      return v1::TranslationService::NewStub(channel_)
          ->Translate(&context, Request(1), &response)
          .ok();
    })) << LastLines(router_->log_path(), 20);
  }

  TemporaryDirectory directory_;
  Cluster cluster_;
  std::unique_ptr<ChildProcess> router_;
  std::shared_ptr<grpc::Channel> channel_;
};

TEST_F(DrainTest, CallsAreAcceptedForTheDelayAndThenFinished) {
  // No call is refused for being slow, and the delay is long enough for a slow
  // machine to begin all calls.
  StartRouter({"--drain_delay=10s", "--drain_seconds=3600",
               "--max_caller_tokens=1000000", "--max_request_time=1h",
               "--max_wait=1h"});
  ASSERT_TRUE(IsServing(channel_));
  Load load(channel_, 4);
  ASSERT_TRUE(Eventually([&] { return load.calls() > 8; }));
  router_->Terminate();
  ASSERT_TRUE(Eventually([&] { return !IsServing(channel_); }));
  // More calls end than there are threads, so at least one began after SIGTERM.
  const int64_t then = load.calls();
  ASSERT_TRUE(Eventually([&] { return load.calls() > then + 4; }));
  EXPECT_THAT(load.Stop(), IsEmpty());

  // Long calls that begin within the delay are finished after it.
  std::vector<std::future<absl::Status>> calls;
  for (int i = 0; i < 4; ++i) {
    calls.push_back(std::async(std::launch::async, [this] {
      grpc::ClientContext context;
      SetDeadline(context, std::chrono::hours(1));
      v1::TranslateRequest request = Request(64);
      request.mutable_options()->set_beam_size(32);
      v1::TranslateResponse response;
      return FromGrpcStatus(
          v1::TranslationService::NewStub(channel_)->Translate(
              &context, request, &response));
    }));
  }
  for (auto& call : calls) EXPECT_OK(call.get());
  EXPECT_TRUE(router_->WaitOrKill(std::chrono::minutes(10)));
  EXPECT_TRUE(router_->Succeeded()) << LastLines(router_->log_path(), 20);
}

// Calls that arrive after the drain delay are answered or fail with
// UNAVAILABLE, which tells clients to use another router.
TEST_F(DrainTest, LaterCallsAreToldToGoElsewhere) {
  StartRouter({"--drain_delay=100ms", "--drain_seconds=30"});
  Load load(channel_, 8);
  ASSERT_TRUE(Eventually([&] { return load.calls() > 16; }));
  router_->Terminate();
  EXPECT_TRUE(router_->WaitOrKill(std::chrono::seconds(60)));
  EXPECT_TRUE(router_->Succeeded()) << LastLines(router_->log_path(), 20);
  for (const absl::Status& failure : load.Stop()) {
    EXPECT_THAT(failure, StatusIs(absl::StatusCode::kUnavailable, _));
  }
}

// Without another replica: the router is told where the experts of a worker go
// that leaves meanwhile, and the worker stays until it has been.
TEST_F(DrainTest, AnswersAreNotDegradedWhoeverElseLeaves) {
  cluster_.AddWorker("worker-1");
  ASSERT_TRUE(Eventually([&] {
    const v1::DescribeResponse state = cluster_.Describe();
    std::set<std::string> holders;
    for (const v1::SessionInfo& session : state.sessions()) {
      for (const auto& worker : session.placement().workers()) {
        holders.insert(worker.name());
      }
    }
    return holders.size() == 2;
  }));
  StartRouter({"--drain_delay=10m", "--name=drained"});
  const auto translate = [&] {
    grpc::ClientContext context;
    SetDeadline(context);
    v1::TranslateResponse response;
    EXPECT_OK(
        FromGrpcStatus(v1::TranslationService::NewStub(channel_)->Translate(
            &context, Request(8), &response)));
    EXPECT_FALSE(response.degraded());
  };
  translate();
  router_->Terminate();
  ASSERT_TRUE(Eventually([&] {
    const v1::DescribeResponse state = cluster_.Describe();
    return std::none_of(state.members().begin(), state.members().end(),
                        [](const v1::Member& member) {
                          return member.name() == "drained" &&
                                 !member.heartbeat().leaving();
                        });
  }));
  EXPECT_FALSE(IsServing(channel_));
  cluster_.DropWorker(0);
  translate();
  router_->Terminate();
  EXPECT_TRUE(router_->WaitOrKill(std::chrono::seconds(60)));
}

// Workers and coordinators drain the same way, here without callers.
TEST(DrainProgramsTest, WorkersAndCoordinatorsTurnAndExit) {
  const TemporaryDirectory directory;
  const std::string coordinator = "unix:" + directory.path() + "/c";
  const std::string worker = "unix:" + directory.path() + "/w";
  const auto start = [&](const std::string& program,
                         const std::string& address) {
    return *ChildProcess::Start(
        program,
        {std::string(GSHARD_PROGRAMS) + "/" + program, "--listen=" + address,
         "--drain_delay=2s", "--drain_seconds=10"},
        directory.path() + "/log");
  };
  setenv("GSHARD_COORDINATOR", coordinator.c_str(), 1);
  const auto first = start("gshard_coordinator", coordinator);
  const auto second = start("gshard_expert_worker", worker);
  unsetenv("GSHARD_COORDINATOR");
  for (const auto& [program, address] :
       {std::pair(second.get(), worker), std::pair(first.get(), coordinator)}) {
    const auto channel = *CreateChannel(address);
    ASSERT_TRUE(Eventually([&] { return IsServing(channel); }));
    program->Terminate();
    ASSERT_TRUE(Eventually([&] { return !IsServing(channel); }));
    // The check must fail while the process still runs.
    EXPECT_FALSE(program->Ended().has_value()) << *program->Ended();
    EXPECT_TRUE(program->WaitOrKill(std::chrono::seconds(60)));
    EXPECT_TRUE(program->Succeeded()) << LastLines(program->log_path(), 20);
  }
}

TEST_F(DrainTest, ASecondSignalEndsItNow) {
  StartRouter({"--drain_delay=10m"});
  router_->Terminate();
  ASSERT_TRUE(Eventually([&] { return !IsServing(channel_); }));
  router_->Terminate();
  EXPECT_TRUE(router_->WaitOrKill(std::chrono::seconds(60)));
  EXPECT_EQ(router_->Ended(), "exit status 143");
}

}  // namespace
}  // namespace gshard
