// Guarantees of every exchange, whatever the transport and the failure policy:
// in process, over gRPC and through shared memory, in training and in serving.

#include <chrono>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <tuple>
#include <utility>

#include "router/workers/worker_connection.h"
#include "services/exchange/expert_exchange.h"
#include "services/exchange/replica_set.h"
#include "services/graph/executor.h"
#include "tests/router/fake_worker.h"
#include "tests/services/exchange/call_program.h"
#include "tests/services/segments/split_model.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;
using Replies = absl::StatusOr<std::vector<Tensor>>;

// A worker behind any transport.
class TestWorker {
 public:
  // Answers a pending call.
  using Reply = std::function<void(Replies)>;
  using OnCall = std::function<void(Reply)>;

  virtual ~TestWorker() = default;
  virtual std::shared_ptr<WorkerStub> stub() = 0;
  // Passes later calls to `on_call` instead of running them.
  virtual void Instead(OnCall on_call) = 0;
  virtual int calls() = 0;
  // Returns once a call has been cancelled.
  virtual void WaitForCancel() = 0;
};

class LocalTestWorker final : public TestWorker {
 public:
  LocalTestWorker(const std::string& name, const std::vector<Segment>& segments,
                  TensorMap parameters, FakeWorker::OnGradient on_gradient)
      : stub_(std::make_shared<Stub>(name, segments, std::move(parameters),
                                     std::move(on_gradient))) {}

  std::shared_ptr<WorkerStub> stub() override { return stub_; }
  void Instead(OnCall on_call) override {
    std::lock_guard<std::mutex> lock(stub_->mutex);
    stub_->instead = std::move(on_call);
  }
  int calls() override {
    std::lock_guard<std::mutex> lock(stub_->mutex);
    return stub_->calls;
  }
  void WaitForCancel() override {
    while (true) {
      std::lock_guard<std::mutex> lock(stub_->mutex);
      if (stub_->cancelled) return;
    }
  }

 private:
  struct Stub final : WorkerStub {
    Stub(const std::string& name, const std::vector<Segment>& segments,
         TensorMap parameters, FakeWorker::OnGradient on_gradient)
        : WorkerStub(name),
          host(segments),
          parameters(std::move(parameters)),
          on_gradient(std::move(on_gradient)) {}

    uint64_t Call(WorkerCall call, OnReply on_reply) override {
      OnCall action;
      uint64_t id = 0;
      {
        std::lock_guard<std::mutex> lock(mutex);
        id = ++calls;
        action = instead;
      }
      const auto reply = [this, on_reply](Replies replies) {
        if (!replies.ok()) replies = Annotate(replies.status(), name());
        on_reply(std::move(replies));
      };
      if (action != nullptr) {
        action(reply);
        return id;
      }
      auto result = host.Run(call.segment, "local", InputsOf(call), parameters);
      if (!result.ok()) {
        reply(result.status());
        return id;
      }
      for (auto& [parameter, gradient] : result->gradients) {
        if (on_gradient) on_gradient(parameter, std::move(gradient));
      }
      reply(std::move(result->replies));
      return id;
    }
    uint64_t Ping(const std::string&, OnReply on_reply) override {
      on_reply(std::vector<Tensor>());
      return 0;
    }
    void Cancel(uint64_t id) override {
      std::lock_guard<std::mutex> lock(mutex);
      cancelled = cancelled || id > 0;
    }

    SegmentHost host;
    const TensorMap parameters;
    const FakeWorker::OnGradient on_gradient;
    std::mutex mutex;
    OnCall instead;
    int calls = 0;
    bool cancelled = false;
  };

  const std::shared_ptr<Stub> stub_;
};

class GrpcTestWorker final : public TestWorker {
 public:
  GrpcTestWorker(const std::string& name, const std::vector<Segment>& segments,
                 TensorMap parameters, FakeWorker::OnGradient on_gradient,
                 const SharingOptions& sharing)
      : worker_(segments, std::move(parameters), std::move(on_gradient),
                sharing),
        connection_(std::make_shared<WorkerConnection>(
            name, worker_.Channel(), StreamOptions(), Tracer(), sharing)) {}

  std::shared_ptr<WorkerStub> stub() override { return connection_; }
  void Instead(OnCall on_call) override {
    worker_.Instead(
        [on_call](const FakeWorker::Sender& sender, const ExpertFrame& run) {
          on_call([sender, id = run.header.call_id()](Replies replies) {
            ExpertFrame reply;
            reply.header.set_kind(v1::ExpertFrameHeader::REPLY);
            reply.header.set_call_id(id);
            *reply.header.mutable_status() = ToProtoStatus(replies.status());
            if (replies.ok()) {
              for (Tensor& tensor : *replies) reply.Add("", std::move(tensor));
            }
            (void)sender->Send(std::move(reply));
          });
        });
  }
  int calls() override { return static_cast<int>(worker_.runs()); }
  void WaitForCancel() override {
    for (size_t count = 1;; ++count) {
      if (worker_.WaitForFrames(count)[count - 1].kind() ==
          v1::ExpertFrameHeader::CANCEL) {
        return;
      }
    }
  }

 private:
  FakeWorker worker_;
  std::shared_ptr<WorkerConnection> connection_;  // destroyed before the worker
};

enum class Transport { kLocal, kGrpc, kShared };
enum class Policy { kTraining, kServing };

class ExchangeTest
    : public ::testing::TestWithParam<std::tuple<Transport, Policy>> {
 protected:
  ExchangeTest() {
    auto program = training() ? BuildTrainProgram(config_, LossConfig())
                              : BuildEncodeProgram(config_);
    EXPECT_OK(program);
    program_ = *std::move(program);
    auto roles = SplitRoles(program_);
    EXPECT_OK(roles);
    roles_ = *std::move(roles);
    parameters_ = TinyParameters(config_, 7);
    if (training()) {
      inputs_ = TrainInputs(config_, TinyPairs());
    } else {
      AddSentences("source", {{1, 4, 9, 2}, {5, 2}, {3, 3, 8}}, 0, inputs_);
      inputs_["key"] = KeyInput(0);
    }
  }
  ~ExchangeTest() override { Stop(); }

  static bool training() {
    return std::get<1>(GetParam()) == Policy::kTraining;
  }

  void Stop() {
    policy_ = nullptr;
    group_ = nullptr;
    workers_.clear();
  }

  // Starts a worker for each list of experts, with a hedge delay of an hour, so
  // that no call is hedged.
  void Start(const ExpertsOfWorkers& experts, int64_t num_experts = 4) {
    Stop();
    auto group = std::make_shared<ReplicaGroup>();
    for (const std::vector<int32_t>& held : experts) {
      const TensorMap share =
          num_experts == 4 ? ShareParameters(roles_, {held}, parameters_)[0]
                           : TensorMap();
      const std::string name = absl::StrCat("w", workers_.size());
      const auto on_gradient = [this, held](const std::string& parameter,
                                            const Tensor& gradient) {
        std::lock_guard<std::mutex> lock(mutex_);
        ScatterGradient(parameter, gradient, held, parameters_, &gradients_);
      };
      if (std::get<0>(GetParam()) == Transport::kLocal) {
        workers_.push_back(std::make_unique<LocalTestWorker>(
            name, roles_.segments, share, on_gradient));
      } else {
        workers_.push_back(std::make_unique<GrpcTestWorker>(
            name, roles_.segments, share, on_gradient, sharing_));
      }
      group->holdings.push_back({name, "s", held, workers_.back()->stub()});
      workers_.back()->stub()->state().Health(
          [](WorkerHealth& health) { health = WorkerHealth(hours(1)); });
    }
    group_ = group;
    if (training()) {
      policy_ = std::make_unique<TrainingPolicy>(num_experts, group, metrics_);
    } else {
      policy_ = std::make_unique<ReplicaSet>(num_experts, group, metrics_);
    }
  }

  absl::StatusOr<TensorMap> RunProgram(const Program& router, TensorMap inputs,
                                       Clock::duration timeout = hours(1)) {
    auto calls = ReadSegmentCalls({&router});
    if (!calls.ok()) return calls.status();
    ExpertExchange exchange(
        *policy_, *calls,
        {.step = training() ? 3 : 0, .deadline = Clock::now() + timeout});
    {
      std::lock_guard<std::mutex> lock(mutex_);
      exchange_ = &exchange;
    }
    auto outputs = Executor(router).Run(
        std::move(inputs), parameters_,
        {.context = RunContext().With<SegmentRunner>(&exchange)});
    {
      std::lock_guard<std::mutex> lock(mutex_);
      exchange_ = nullptr;
    }
    bytes_ = exchange.bytes();
    if (!outputs.ok()) return outputs.status();
    return NamedOutputs(router, *outputs);
  }
  absl::StatusOr<TensorMap> Run(Clock::duration timeout = hours(1)) {
    return RunProgram(roles_.router, inputs_, timeout);
  }

  void ExpectSame(const absl::StatusOr<TensorMap>& outputs) {
    ASSERT_OK(outputs);
    TensorMap all = *outputs;
    for (const auto& [name, gradient] : gradients_) all[name] = gradient;
    ASSERT_OK_AND_ASSIGN(const TensorMap whole,
                         RunWhole(program_, parameters_, inputs_));
    ExpectSameOutputs(whole, all);
  }

  // Expects no outstanding rows.
  void ExpectNothingLeft() {
    for (const ReplicaHolding& holding : group_->holdings) {
      EXPECT_EQ(holding.stub->state().outstanding_rows(), 0);
    }
  }

  ModelConfig config_ = TinyConfig();
  Program program_;
  RolePrograms roles_;
  TensorMap parameters_;
  TensorMap inputs_;
  Metrics process_metrics_{"router", "test"};
  ExchangeMetrics metrics_{process_metrics_};
  const SharingOptions sharing_{
      .account =
          std::get<0>(GetParam()) == Transport::kShared ? int64_t{1} << 30 : 0};
  std::mutex mutex_;
  TensorMap gradients_;                 // guarded by mutex_
  ExpertExchange* exchange_ = nullptr;  // guarded by mutex_
  int64_t bytes_ = 0;
  std::vector<std::unique_ptr<TestWorker>> workers_;
  std::shared_ptr<const ReplicaGroup> group_;
  std::unique_ptr<ExchangePolicy> policy_;
};

TEST_P(ExchangeTest, GivesTheBitsOfOneProcess) {
  for (const ExpertsOfWorkers& experts :
       {ExpertsOfWorkers{{0, 1, 2, 3}}, ExpertsOfWorkers{{0}, {1, 2, 3}},
        ExpertsOfWorkers{{1, 3}, {}, {0, 2}},
        ExpertsOfWorkers{{3}, {1}, {2}, {0}}}) {
    Start(experts);
    gradients_.clear();
    ExpectSame(Run());
    ExpectNothingLeft();
    EXPECT_GT(bytes_, 0);
    for (size_t w = 0; w < experts.size(); ++w) {
      // One call per segment; without experts in training only.
      const bool called = training() || !experts[w].empty();
      EXPECT_EQ(workers_[w]->calls(), called ? roles_.segments.size() : 0);
    }
  }
}

TEST_P(ExchangeTest, BytesOfTensorsAreCounted) {
  Start({{0, 1}, {2, 3}});
  ASSERT_OK(Run());
  EXPECT_EQ(metrics_.sent_bytes.Value() + metrics_.received_bytes.Value(),
            static_cast<double>(bytes_));
  EXPECT_GT(metrics_.sent_bytes.Value(), metrics_.received_bytes.Value());
}

TEST_P(ExchangeTest, AnErrorKeepsItsCodeAndNamesTheWorker) {
  Start({{0, 1}, {2, 3}});
  workers_[1]->Instead([](const TestWorker::Reply& reply) {
    reply(absl::FailedPreconditionError("step: expected 4, got 3"));
  });
  EXPECT_THAT(Run(), StatusIs(absl::StatusCode::kFailedPrecondition,
                              AllOf(HasSubstr("expert worker 'w1'"),
                                    HasSubstr("step: expected 4, got 3"))));
  ExpectNothingLeft();
}

TEST_P(ExchangeTest, WrongRepliesAreRefused) {
  const Tensor wrong = Tensor::Zeros(ElementType::kFloat32, {1, 1});
  for (const std::vector<Tensor>& replies :
       {std::vector<Tensor>{}, std::vector<Tensor>{wrong},
        std::vector<Tensor>{wrong, wrong}}) {
    Start({{0, 1}, {2, 3}});
    workers_[1]->Instead(
        [&](const TestWorker::Reply& reply) { reply(replies); });
    EXPECT_THAT(
        Run(),
        StatusIs(absl::StatusCode::kInternal,
                 AllOf(HasSubstr("expert worker 'w1', segment "),
                       HasSubstr(replies.size() == 1
                                     ? "got f32[1, 1]"
                                     : absl::StrCat("expected 1 replies, got ",
                                                    replies.size())))));
    ExpectNothingLeft();
  }
}

TEST_P(ExchangeTest, WhoDoesNotAnswerInTimeIsNamedAndTold) {
  Start({{0, 1}, {2, 3}});
  workers_[1]->Instead([](const TestWorker::Reply&) {});
  EXPECT_THAT(Run(milliseconds(100)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("): expert worker 'w1' did not answer in "
                                 "time")));
  workers_[1]->WaitForCancel();
  ExpectNothingLeft();
  EXPECT_THAT(Run(milliseconds(0)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("no time is left for expert workers")));
}

TEST_P(ExchangeTest, AnInterruptionEndsTheWaiting) {
  Start({{0, 1}, {2, 3}});
  workers_[1]->Instead([](const TestWorker::Reply&) {});
  auto run = std::async(std::launch::async, [this] { return Run(); });
  while (workers_[1]->calls() == 0) std::this_thread::yield();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    exchange_->Interrupt();
  }
  EXPECT_THAT(run.get(),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("cancelled")));
  workers_[1]->WaitForCancel();
  ExpectNothingLeft();
}

// If a worker is unavailable, training fails, and serving retries on another
// replica, which gives the same bits.
TEST_P(ExchangeTest, AWorkerThatIsNotThere) {
  if (training()) {
    Start({{0, 1}, {2, 3}});
  } else {
    Start({{0, 1, 2, 3}, {2, 3}});
    // Worker 1 has fewer outstanding rows, so it gets the calls for 2 and 3.
    workers_[0]->stub()->state().AddOutstanding(1000);
  }
  workers_[1]->Instead([](const TestWorker::Reply& reply) {
    reply(absl::UnavailableError("shutting down"));
  });
  const auto outputs = Run();
  EXPECT_GT(workers_[1]->calls(), 0);
  if (training()) {
    EXPECT_THAT(outputs, StatusIs(absl::StatusCode::kUnavailable,
                                  AllOf(HasSubstr("expert worker 'w1'"),
                                        HasSubstr("shutting down"))));
  } else {
    ExpectSame(outputs);
    workers_[0]->stub()->state().AddOutstanding(-1000);
  }
  ExpectNothingLeft();
}

std::string NameOf(
    const ::testing::TestParamInfo<ExchangeTest::ParamType>& info) {
  static constexpr const char* kTransports[] = {"InProcess", "OverGrpc",
                                                "Shared"};
  const auto [transport, policy] = info.param;
  return std::string(kTransports[static_cast<int>(transport)]) +
         (policy == Policy::kTraining ? "InTraining" : "InServing");
}

INSTANTIATE_TEST_SUITE_P(
    All, ExchangeTest,
    ::testing::Combine(::testing::Values(Transport::kLocal, Transport::kGrpc,
                                         Transport::kShared),
                       ::testing::Values(Policy::kTraining, Policy::kServing)),
    NameOf);

}  // namespace
}  // namespace gshard
