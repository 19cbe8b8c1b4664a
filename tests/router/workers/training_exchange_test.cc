// The training exchange over gRPC: the bits of the exchange in process, and
// calls to workers that fail. exchange_test.cc tests the guarantees of all
// exchanges.

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <mutex>

#include "router/workers/worker_connection.h"
#include "services/exchange/expert_exchange.h"
#include "services/graph/executor.h"
#include "tests/router/fake_worker.h"
#include "tests/services/segments/split_model.h"

namespace gshard {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using Clock = std::chrono::steady_clock;

class TrainingExchangeTest : public ::testing::Test {
 protected:
  TrainingExchangeTest() {
    config_.gate.training_policy = SecondExpertPolicy::kRandom;
    config_.gate.training_capacity_factor = 1.0;
    config_.dropout.residual = 0.1;
    auto program = BuildTrainProgram(config_, LossConfig());
    EXPECT_OK(program);
    auto roles = SplitRoles(*program);
    EXPECT_OK(roles);
    roles_ = *std::move(roles);
    auto calls = ReadSegmentCalls({&roles_.router});
    EXPECT_OK(calls);
    calls_ = *std::move(calls);
    parameters_ = TinyParameters(config_, 7);
    inputs_ = TrainInputs(config_, TinyPairs());
  }

  // Starts a worker for each list of experts.
  void StartWorkers(const ExpertsOfWorkers& experts,
                    StreamOptions options = {}) {
    auto group = std::make_shared<ReplicaGroup>();
    const std::vector<TensorMap> shares =
        ShareParameters(roles_, experts, parameters_);
    for (size_t w = 0; w < experts.size(); ++w) {
      workers_.push_back(std::make_unique<FakeWorker>(
          roles_.segments, shares[w],
          [this, held = experts[w]](const std::string& parameter,
                                    const Tensor& gradient) {
            std::lock_guard<std::mutex> lock(mutex_);
            ScatterGradient(parameter, gradient, held, parameters_,
                            &gradients_);
          }));
      const std::string name = absl::StrCat("w", w);
      connections_.push_back(std::make_shared<WorkerConnection>(
          name, workers_[w]->Channel(), options));
      group->holdings.push_back({.worker = name,
                                 .session = "job/0",
                                 .experts = experts[w],
                                 .stub = connections_[w]});
    }
    group_ = std::move(group);
  }

  // Runs the router's program once, in session `session`.
  absl::StatusOr<TensorMap> Run(const std::string& session,
                                Clock::duration timeout = hours(1)) {
    ReplicaGroup group = *group_;
    for (ReplicaHolding& holding : group.holdings) holding.session = session;
    TrainingPolicy policy(4, std::make_shared<ReplicaGroup>(group));
    ExpertExchange exchange(policy, calls_,
                            {.step = 3,
                             .microbatch = 2,
                             .attempt = 1,
                             .deadline = Clock::now() + timeout});
    auto outputs =
        Executor(roles_.router)
            .Run(inputs_, parameters_,
                 {.context = RunContext().With<SegmentRunner>(&exchange)});
    exchange_bytes_ = exchange.bytes();
    if (!outputs.ok()) return outputs.status();
    return NamedOutputs(roles_.router, *outputs);
  }

  ModelConfig config_ = TinyConfig();
  RolePrograms roles_;
  TensorMap parameters_;
  TensorMap inputs_;
  std::mutex mutex_;
  TensorMap gradients_;
  SegmentCalls calls_;
  std::atomic<int64_t> exchange_bytes_ = 0;
  std::vector<std::unique_ptr<FakeWorker>> workers_;
  // Destroyed before the workers, because streams must end first.
  std::vector<std::shared_ptr<WorkerConnection>> connections_;
  std::shared_ptr<const ReplicaGroup> group_;
};

TEST_F(TrainingExchangeTest, GivesTheBitsOfTheExchangeInProcess) {
  for (const ExpertsOfWorkers& experts :
       {ExpertsOfWorkers{{0, 1, 2, 3}}, ExpertsOfWorkers{{0}, {1, 2, 3}},
        ExpertsOfWorkers{{1, 3}, {2}, {0}}}) {
    group_ = nullptr;
    connections_.clear();
    workers_.clear();
    gradients_.clear();
    StartWorkers(experts);
    ASSERT_OK_AND_ASSIGN(const TensorMap expected,
                         RunSplit(roles_, experts, parameters_, inputs_));
    ASSERT_OK_AND_ASSIGN(TensorMap outputs, Run("job/0"));
    for (const auto& [name, gradient] : gradients_) outputs[name] = gradient;
    ExpectSameOutputs(expected, outputs);
    EXPECT_GT(exchange_bytes_, 0);
    for (const auto& worker : workers_) {
      // One frame per segment, all on one stream.
      const auto frames = worker->WaitForFrames(roles_.segments.size());
      EXPECT_THAT(frames, SizeIs(roles_.segments.size()));
      EXPECT_EQ(worker->streams(), 1);
      EXPECT_EQ(frames[0].session(), "job/0");
      EXPECT_EQ(frames[0].step(), 3);
      EXPECT_EQ(frames[0].microbatch(), 2);
      EXPECT_EQ(frames[0].attempt(), 1);
      EXPECT_GT(frames[0].timeout_ms(), 1000);
    }
  }
}

TEST_F(TrainingExchangeTest, RunsShareTheStream) {
  StartWorkers({{0, 1}, {2, 3}});
  ASSERT_OK_AND_ASSIGN(const TensorMap first, Run("job/0"));
  std::vector<std::future<absl::StatusOr<TensorMap>>> runs;
  for (int i = 1; i <= 4; ++i) {
    runs.push_back(std::async(std::launch::async, [this, i] {
      return Run(absl::StrCat("job/", i));
    }));
  }
  for (auto& run : runs) {
    const absl::StatusOr<TensorMap> outputs = run.get();
    ASSERT_OK(outputs);
    ExpectSameOutputs(first, *outputs);
  }
  EXPECT_EQ(workers_[0]->streams(), 1);
  EXPECT_EQ(workers_[1]->streams(), 1);
}

TEST_F(TrainingExchangeTest, ErrorReplyKeepsItsCodeAndNamesTheWorker) {
  StartWorkers({{0, 1}, {2, 3}});
  workers_[1]->Instead([](const FakeWorker::Sender& sender,
                          const ExpertFrame& run) {
    ExpertFrame reply;
    reply.header.set_kind(v1::ExpertFrameHeader::REPLY);
    reply.header.set_call_id(run.header.call_id());
    *reply.header.mutable_status() =
        ToProtoStatus(absl::FailedPreconditionError("step: expected 4, got 3"));
    EXPECT_OK(sender->Send(std::move(reply)));
  });
  EXPECT_THAT(Run("job/0"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("expert worker 'w1'"),
                             HasSubstr("step: expected 4, got 3"))));
  // The stream stays open.
  workers_[1]->Instead(nullptr);
  EXPECT_OK(Run("job/1"));
  EXPECT_EQ(workers_[1]->streams(), 1);
  EXPECT_EQ(connections_[0]->pending(), 0);
  EXPECT_EQ(connections_[1]->pending(), 0);
}

TEST_F(TrainingExchangeTest, LostStreamIsUnavailableAndOpenedAgain) {
  StartWorkers({{0, 1}, {2, 3}});
  workers_[0]->Instead(
      [](const FakeWorker::Sender& sender, const ExpertFrame&) {
        sender->Finish(absl::UnavailableError("shutting down"));
      });
  EXPECT_THAT(Run("job/0"), StatusIs(absl::StatusCode::kUnavailable,
                                     AllOf(HasSubstr("expert worker 'w0'"),
                                           HasSubstr("shutting down"))));
  EXPECT_EQ(connections_[0]->pending(), 0);
  workers_[0]->Instead(nullptr);
  EXPECT_OK(Run("job/1"));
  EXPECT_EQ(workers_[0]->streams(), 2);
  EXPECT_EQ(workers_[1]->streams(), 1);
}

TEST_F(TrainingExchangeTest, SilentWorkerIsGivenUpAtTheDeadline) {
  StartWorkers({{0, 1}, {2, 3}});
  workers_[1]->Instead([](const FakeWorker::Sender&, const ExpertFrame&) {});
  EXPECT_THAT(Run("job/0", milliseconds(100)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("expert worker 'w1' did not answer")));
  const auto frames = workers_[1]->WaitForFrames(2);
  EXPECT_EQ(frames[0].kind(), v1::ExpertFrameHeader::RUN);
  EXPECT_LE(frames[0].timeout_ms(), 100);
  EXPECT_EQ(frames[1].kind(), v1::ExpertFrameHeader::CANCEL);
  EXPECT_EQ(frames[1].call_id(), frames[0].call_id());
  EXPECT_EQ(connections_[1]->pending(), 0);
}

TEST_F(TrainingExchangeTest, CallLongerThanAMessageIsRefusedHere) {
  StreamOptions options;
  options.frame_limits.max_bytes = (64 << 10) + 100;
  StartWorkers({{0, 1, 2, 3}}, options);
  EXPECT_THAT(Run("job/0"), StatusIs(absl::StatusCode::kResourceExhausted,
                                     HasSubstr("longer than a message")));
  EXPECT_EQ(workers_[0]->streams(), 0);
}

TEST_F(TrainingExchangeTest, UnreachableWorkerIsUnavailable) {
  StartWorkers({{0, 1, 2, 3}});
  ASSERT_OK_AND_ASSIGN(const auto channel,
                       CreateChannel("unix:/nonexistent/worker.sock"));
  ReplicaGroup group = *group_;
  group.holdings[0].stub = std::make_shared<WorkerConnection>("gone", channel);
  group_ = std::make_shared<ReplicaGroup>(group);
  EXPECT_THAT(Run("job/0"), StatusIs(absl::StatusCode::kUnavailable,
                                     HasSubstr("expert worker 'gone'")));
}

}  // namespace
}  // namespace gshard
