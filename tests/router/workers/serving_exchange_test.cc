// Calls to experts with replicas on several workers: the bits are the same
// whichever replica answers, also when workers fail, stall or are all gone.

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <set>
#include <thread>

#include "router/workers/worker_connection.h"
#include "services/base/retry_delay.h"
#include "services/exchange/expert_exchange.h"
#include "services/exchange/replica_set.h"
#include "services/graph/executor.h"
#include "services/metrics/metrics.h"
#include "tests/router/fake_worker.h"
#include "tests/services/segments/split_model.h"

namespace gshard {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;
using Sender = FakeWorker::Sender;

// The reference without a network: experts are local, but some rows are lost.
class LossySegments final : public SegmentRunner {
 public:
  LossySegments(const RolePrograms& roles, const TensorMap& parameters,
                std::set<int32_t> lost)
      : whole_(roles.segments, {{0, 1, 2, 3}},
               ShareParameters(roles, {{0, 1, 2, 3}}, parameters)),
        lost_(std::move(lost)) {}

  absl::StatusOr<std::vector<Tensor>> Call(
      const Node& node, absl::Span<const Tensor> operands) override {
    lost_rows_.clear();
    auto results = whole_.Call(node, operands);
    if (!results.ok()) return results;
    int64_t row = 0;
    for (int32_t e = 0; e < 4; ++e) {
      const int64_t size = operands[0].i32()[e];
      if (lost_.count(e) > 0 && size > 0) {
        lost_rows_.push_back({row, row + size});
        Tensor rows = (*results)[0].Rows(row, row + size);
        std::fill_n(rows.f32(), rows.size(), 0.0f);
      }
      row += size;
    }
    return results;
  }
  absl::Span<const RowRange> lost_rows() const override { return lost_rows_; }

 private:
  LocalSegments whole_;
  const std::set<int32_t> lost_;
  std::vector<RowRange> lost_rows_;
};

class ServingExchangeTest : public ::testing::Test {
 protected:
  ServingExchangeTest() {
    auto program = BuildEncodeProgram(config_);
    EXPECT_OK(program);
    program_ = *std::move(program);
    auto roles = SplitRoles(program_);
    EXPECT_OK(roles);
    roles_ = *std::move(roles);
    auto calls = ReadSegmentCalls({&roles_.router});
    EXPECT_OK(calls);
    calls_ = *std::move(calls);
    parameters_ = TinyParameters(config_, 7);
    AddSentences("source", {{1, 4, 9, 2}, {5, 2}, {3, 3, 8}}, 0, inputs_);
    inputs_["key"] = KeyInput(0);
  }

  ~ServingExchangeTest() override {
    replicas_ = nullptr;
    group_ = nullptr;  // streams end before the workers
  }

  // Starts a worker for each list of experts.
  void StartWorkers(const ExpertsOfWorkers& experts) {
    auto group = std::make_shared<ReplicaGroup>();
    group->version = 1;
    const std::vector<TensorMap> shares =
        ShareParameters(roles_, experts, parameters_);
    for (size_t w = 0; w < experts.size(); ++w) {
      workers_.push_back(
          std::make_unique<FakeWorker>(roles_.segments, shares[w]));
      const std::string name = absl::StrCat("w", w);
      group->holdings.push_back({.worker = name,
                                 .session = "m@1#0",
                                 .experts = experts[w],
                                 .stub = std::make_shared<WorkerConnection>(
                                     name, workers_[w]->Channel())});
    }
    group_ = group;
    replicas_ = std::make_unique<ReplicaSet>(4, group, exchange_metrics_);
  }

  absl::StatusOr<TensorMap> Run(Clock::duration timeout = hours(1)) {
    ExpertExchange segments(*replicas_, calls_,
                            {.deadline = Clock::now() + timeout});
    auto outputs =
        Executor(roles_.router)
            .Run(inputs_, parameters_,
                 {.context = RunContext().With<SegmentRunner>(&segments)});
    if (!outputs.ok()) return outputs.status();
    return NamedOutputs(roles_.router, *outputs);
  }

  // The outputs of the program without the lost experts.
  TensorMap Expected(std::set<int32_t> lost = {}) {
    if (lost.empty()) {
      auto whole = RunWhole(program_, parameters_, inputs_);
      EXPECT_OK(whole);
      return *whole;
    }
    LossySegments segments(roles_, parameters_, std::move(lost));
    auto outputs =
        Executor(roles_.router)
            .Run(inputs_, parameters_,
                 {.context = RunContext().With<SegmentRunner>(&segments)});
    EXPECT_OK(outputs);
    return NamedOutputs(roles_.router, *outputs);
  }

  void ExpectSame(const absl::StatusOr<TensorMap>& outputs,
                  std::set<int32_t> lost = {}) {
    ASSERT_OK(outputs);
    ExpectSameOutputs(Expected(std::move(lost)), *outputs);
  }

  static int64_t LostChoices(const TensorMap& outputs) {
    int64_t lost = 0;
    for (const auto& [name, tensor] : outputs) {
      if (name.rfind("lost/", 0) != 0) continue;
      for (const int32_t count : tensor.span<int32_t>()) lost += count;
    }
    return lost;
  }

  WorkerHealth::State StateOf(int w) {
    return group_->holdings[w].stub->state().health();
  }
  void WaitForState(int w, WorkerHealth::State state) {
    while (StateOf(w) != state) std::this_thread::yield();
  }

  // Expects no outstanding rows.
  void ExpectNothingLeft() {
    for (const ReplicaHolding& holding : group_->holdings) {
      EXPECT_EQ(holding.stub->state().outstanding_rows(), 0);
    }
  }

  bool HasMetric(const std::string& line) {
    return metrics_.Serialize().find(line) != std::string::npos;
  }

  ModelConfig config_ = TinyConfig();
  Program program_;
  RolePrograms roles_;
  TensorMap parameters_;
  TensorMap inputs_;
  SegmentCalls calls_;
  Metrics metrics_{"router", "test"};
  ExchangeMetrics exchange_metrics_{metrics_};
  std::vector<std::unique_ptr<FakeWorker>> workers_;
  std::shared_ptr<const ReplicaGroup> group_;
  std::unique_ptr<ReplicaSet> replicas_;
};

TEST_F(ServingExchangeTest, GivesTheBitsOfTheWholeProgram) {
  for (const ExpertsOfWorkers& experts :
       {ExpertsOfWorkers{{0, 1, 2, 3}}, ExpertsOfWorkers{{0, 2}, {1, 3}},
        ExpertsOfWorkers{{0, 1, 2}, {0, 3}, {1, 2, 3}},
        ExpertsOfWorkers{{0, 1, 2, 3}, {0, 1, 2, 3}}}) {
    replicas_ = nullptr;
    group_ = nullptr;
    workers_.clear();
    StartWorkers(experts);
    for (int run = 0; run < 3; ++run) {
      // Outstanding rows decide which replica is called, but not the results.
      group_->holdings[0].stub->state().AddOutstanding(run * 50);
      ExpectSame(Run());
      group_->holdings[0].stub->state().AddOutstanding(-run * 50);
    }
    ExpectNothingLeft();
  }
}

TEST_F(ServingExchangeTest, RowsGoWhereFewestAreOutstanding) {
  StartWorkers({{0, 1, 2, 3}, {0, 1, 2, 3}});
  // Calls to this worker are not hedged, however long they take.
  group_->holdings[1].stub->state().Health([](WorkerHealth& health) {
    health = WorkerHealth({.first_hedge_delay = hours(1)});
  });
  group_->holdings[0].stub->state().AddOutstanding(1000);
  ExpectSame(Run());
  EXPECT_EQ(workers_[0]->runs(), 0);
  EXPECT_EQ(workers_[1]->runs(), 1);
  group_->holdings[0].stub->state().AddOutstanding(-1000);
}

TEST_F(ServingExchangeTest, WhatFailsIsAskedOfOthersAtOnce) {
  StartWorkers({{0, 1, 2}, {0, 2, 3}, {1, 3}});
  workers_[0]->AnswerPings(false);
  workers_[0]->Instead([](const Sender& sender, const ExpertFrame&) {
    sender->Finish(absl::UnavailableError("shutting down"));
  });
  // A rate includes the first event only if the counter existed at 0.
  for (const char* metric :
       {"expert_call_retries", "expert_call_hedges", "worker_ejections"}) {
    for (const char* worker : {"w0", "w1", "w2"}) {
      EXPECT_TRUE(HasMetric(absl::StrCat("gshard_", metric, "_total{worker=\"",
                                         worker, "\"} 0")));
    }
  }
  ExpectSame(Run());
  ExpectNothingLeft();
  EXPECT_EQ(StateOf(0), WorkerHealth::State::kFailed);
  EXPECT_TRUE(HasMetric("gshard_expert_call_retries_total{worker=\"w0\"} 1"));
  EXPECT_TRUE(HasMetric("gshard_worker_ejections_total{worker=\"w0\"} 1"));
  // A failed worker gets no calls until it answers a ping.
  const size_t runs = workers_[0]->runs();
  for (int i = 0; i < 5; ++i) ExpectSame(Run());
  EXPECT_EQ(workers_[0]->runs(), runs);
  EXPECT_EQ(replicas_->live_experts(), 4);
  workers_[0]->Instead(nullptr);
  workers_[0]->AnswerPings(true);
  WaitForState(0, WorkerHealth::State::kGood);
  ExpectSame(Run());
  EXPECT_GT(workers_[0]->runs(), runs);
}

TEST_F(ServingExchangeTest, ASilentWorkerCostsTheHedgeDelayOnce) {
  StartWorkers({{0, 1, 2, 3}, {0, 1, 2, 3}});
  // The other worker does not count as slow, however busy this machine is.
  group_->holdings[1].stub->state().Health([](WorkerHealth& health) {
    health = WorkerHealth({.first_hedge_delay = hours(1)});
  });
  workers_[0]->AnswerPings(false);
  workers_[0]->Instead([](const Sender&, const ExpertFrame&) {});
  ExpectSame(Run());
  EXPECT_TRUE(HasMetric("gshard_expert_call_hedges_total{worker=\"w0\"} 1"));
  for (int i = 0; i < 3; ++i) ExpectSame(Run());
  EXPECT_EQ(workers_[0]->runs(), 1);
  ExpectNothingLeft();
  // The losing call is cancelled.
  EXPECT_EQ(workers_[0]->WaitForFrames(2)[1].kind(),
            v1::ExpertFrameHeader::CANCEL);
  WaitForState(0, WorkerHealth::State::kFailed);
}

// Its gRPC thread answers pings, but whatever computes hangs.
TEST_F(ServingExchangeTest, AWorkerThatAnswersPingsOnlyIsAvoided) {
  StartWorkers({{0, 1, 2, 3}, {0, 1, 2, 3}});
  group_->holdings[1].stub->state().Health([](WorkerHealth& health) {
    health = WorkerHealth({.first_hedge_delay = hours(1)});
  });
  workers_[0]->Instead([](const Sender&, const ExpertFrame&) {});
  // More than the hedges that a burst allows.
  for (int i = 0; i < 40; ++i) {
    if (i < 3) WaitForState(0, WorkerHealth::State::kGood);
    const auto outputs = Run(std::chrono::seconds(30));
    SCOPED_TRACE(i);
    ASSERT_OK(outputs);
    ExpectSame(outputs);
  }
  // Three, and one whenever it is tried again, which gets rarer.
  EXPECT_GE(workers_[0]->runs(), 3);
  EXPECT_LE(workers_[0]->runs(), 10);
  ExpectNothingLeft();
}

TEST_F(ServingExchangeTest, ASlowWorkerMayAnswerAfterAll) {
  StartWorkers({{0, 1, 2, 3}, {0, 1, 2, 3}});
  std::promise<std::pair<Sender, ExpertFrame>> asked;
  workers_[0]->Instead([&](const Sender& sender, const ExpertFrame& frame) {
    asked.set_value({sender, frame});
  });
  ExpectSame(Run());
  // The late reply to the lost call is ignored.
  auto [sender, frame] = asked.get_future().get();
  ExpertFrame reply;
  reply.header.set_kind(v1::ExpertFrameHeader::REPLY);
  reply.header.set_call_id(frame.header.call_id());
  EXPECT_OK(sender->Send(std::move(reply)));
  // The worker answers pings, so it gets calls again.
  workers_[0]->Instead(nullptr);
  WaitForState(0, WorkerHealth::State::kGood);
  ExpectSame(Run());
  EXPECT_EQ(workers_[0]->runs(), 2);
  ExpectNothingLeft();
}

TEST_F(ServingExchangeTest, ASlowWorkerTakesWhatAFailedOneLeaves) {
  StartWorkers({{0, 1, 2, 3}, {2, 3}});
  // 2 and 3 are asked of w1 only, without a hedge while it may answer.
  group_->holdings[0].stub->state().AddOutstanding(1000);
  group_->holdings[1].stub->state().Health([](WorkerHealth& health) {
    health = WorkerHealth({.first_hedge_delay = hours(1)});
  });
  std::atomic<int> calls = 0;
  std::promise<std::pair<Sender, ExpertFrame>> slow;
  workers_[0]->Instead([&](const Sender& sender, const ExpertFrame& frame) {
    if (calls++ > 0) return workers_[0]->RunNow(sender, frame);
    slow.set_value({sender, frame});
  });
  std::promise<Sender> failing;
  workers_[1]->Instead([&](const Sender& sender, const ExpertFrame&) {
    failing.set_value(sender);
  });
  auto run = std::async(std::launch::async, [&] { return Run(); });
  auto [sender, frame] = slow.get_future().get();
  while (workers_[0]->pings() == 0) std::this_thread::yield();
  failing.get_future().get()->Finish(absl::UnavailableError("killed"));
  while (!HasMetric("gshard_expert_call_retries_total{worker=\"w1\"} 1")) {
    std::this_thread::yield();
  }
  workers_[0]->RunNow(sender, std::move(frame));
  const auto outputs = run.get();
  ExpectSame(outputs);
  EXPECT_EQ(LostChoices(*outputs), 0);
  EXPECT_EQ(calls, 2);
  group_->holdings[0].stub->state().AddOutstanding(-1000);
  ExpectNothingLeft();
}

TEST_F(ServingExchangeTest, RowsWithoutAReplicaAreLostAndDeclared) {
  StartWorkers({{0, 1}, {2, 3}});
  ExpectSame(Run());
  workers_[1]->AnswerPings(false);
  workers_[1]->Instead([](const Sender& sender, const ExpertFrame&) {
    sender->Finish(absl::UnavailableError("shutting down"));
  });
  // The worker fails during the first run and stays away in the next ones.
  for (int i = 0; i < 3; ++i) {
    const auto outputs = Run();
    ExpectSame(outputs, {2, 3});
    EXPECT_GT(LostChoices(*outputs), 0);
  }
  EXPECT_EQ(replicas_->live_experts(), 2);
  EXPECT_FALSE(HasMetric("gshard_expert_tokens_lost_total 0"));
  ExpectNothingLeft();
  // When the worker is back, no choices are lost.
  workers_[1]->Instead(nullptr);
  workers_[1]->AnswerPings(true);
  WaitForState(1, WorkerHealth::State::kGood);
  const auto outputs = Run();
  ExpectSame(outputs);
  EXPECT_EQ(LostChoices(*outputs), 0);
}

TEST_F(ServingExchangeTest, ASilentWorkerWithoutReplicasIsGivenUp) {
  StartWorkers({{0, 1}, {2, 3}});
  workers_[0]->AnswerPings(false);
  workers_[0]->Instead([](const Sender&, const ExpertFrame&) {});
  ExpectSame(Run(), {0, 1});
  ExpectNothingLeft();
}

TEST_F(ServingExchangeTest, ABusyWorkerWithoutReplicasIsWaitedFor) {
  StartWorkers({{0, 1, 2, 3}});
  std::promise<std::pair<Sender, ExpertFrame>> asked;
  workers_[0]->Instead([&](const Sender& sender, const ExpertFrame& frame) {
    asked.set_value({sender, frame});
  });
  auto run = std::async(std::launch::async, [&] { return Run(); });
  auto [sender, frame] = asked.get_future().get();
  // Waits until the silent worker is suspected and pinged.
  while (workers_[0]->pings() == 0) std::this_thread::yield();
  WaitForState(0, WorkerHealth::State::kGood);
  workers_[0]->RunNow(sender, std::move(frame));
  ExpectSame(run.get());
}

// The only other replica has failed when the worker is late, and is back soon.
TEST_F(ServingExchangeTest, AHedgeThatWasNotSentIsSentLater) {
  StartWorkers({{0, 1, 2, 3}, {0, 1, 2, 3}});
  WorkerState& other = group_->holdings[1].stub->state();
  other.Health([](WorkerHealth& health) {
    health = WorkerHealth({.first_hedge_delay = hours(1)});
    health.OnFailure(Clock::now());
    health.OnProbeSent();  // nobody else pings it
  });
  workers_[0]->Instead([](const Sender&, const ExpertFrame&) {});
  auto run = std::async(std::launch::async, [&] { return Run(); });
  while (workers_[0]->pings() == 0) std::this_thread::yield();
  WaitForState(0, WorkerHealth::State::kGood);
  other.Health([](WorkerHealth& health) {
    health.OnProbeReply(Clock::now(), /*ok=*/true);
  });
  ExpectSame(run.get());
  EXPECT_EQ(workers_[1]->runs(), 1);
  EXPECT_TRUE(HasMetric("gshard_expert_call_hedges_total{worker=\"w0\"} 1"));
}

TEST_F(ServingExchangeTest, OnlyHedgesThatWereSentCount) {
  StartWorkers({{0, 1, 2, 3}});
  const Clock::time_point now = Clock::now();
  const auto late = [&](Clock::duration by = milliseconds(20),
                        bool others_asked = false) {
    return replicas_->OnLate(group_->holdings[0], now - by, others_asked, now);
  };
  for (int i = 0; i < 100; ++i) EXPECT_EQ(late(), LateAction::kHedge);
  for (int sent = 0; sent < 16; ++sent) {
    EXPECT_EQ(late(), LateAction::kHedge);
    replicas_->OnHedge();
  }
  EXPECT_EQ(late(), LateAction::kWait);
  // A call does not wait for a budget for ever.
  EXPECT_EQ(late(ReplicaSet::kPingTimeout - milliseconds(1)),
            LateAction::kWait);
  EXPECT_EQ(late(ReplicaSet::kPingTimeout), LateAction::kHedge);
  EXPECT_EQ(late(ReplicaSet::kPingTimeout, /*others_asked=*/true),
            LateAction::kWait);
}

TEST_F(ServingExchangeTest, WithoutAnyWorkerItIsUnavailable) {
  StartWorkers({{0, 1, 2, 3}, {2, 3}});
  for (const auto& worker : workers_) {
    worker->AnswerPings(false);
    worker->Instead([](const Sender& sender, const ExpertFrame&) {
      sender->Finish(absl::UnavailableError("shutting down"));
    });
  }
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(Run(), StatusIs(absl::StatusCode::kUnavailable,
                                HasSubstr("no expert worker")));
  }
  ASSERT_OK(
      replicas_->Update(std::make_shared<ReplicaGroup>(ReplicaGroup{2, {}})));
  EXPECT_THAT(Run(), StatusIs(absl::StatusCode::kUnavailable,
                              HasSubstr("no expert worker")));
}

TEST_F(ServingExchangeTest, ACallThatMissedAChangeFollowsIt) {
  StartWorkers({{0, 1, 2, 3}});
  // The worker has replaced the session by another one.
  workers_[0]->Instead([this](const Sender& sender, const ExpertFrame& frame) {
    if (frame.header.session() != "m@1#0") {
      return workers_[0]->RunNow(sender, frame);
    }
    ReplicaGroup changed = *group_;
    changed.version = 2;
    changed.holdings[0].session = "m@1#1";
    EXPECT_OK(replicas_->Update(std::make_shared<ReplicaGroup>(changed)));
    ExpertFrame reply;
    reply.header.set_kind(v1::ExpertFrameHeader::REPLY);
    reply.header.set_call_id(frame.header.call_id());
    *reply.header.mutable_status() =
        ToProtoStatus(absl::NotFoundError("no session 'm@1#0'"));
    EXPECT_OK(sender->Send(std::move(reply)));
  });
  ExpectSame(Run());
  // The worker counts as healthy.
  EXPECT_EQ(StateOf(0), WorkerHealth::State::kGood);
  EXPECT_EQ(replicas_->live_experts(), 4);
}

// The placement is an old one: its coordinator is away, or cannot be heard.
TEST_F(ServingExchangeTest, ASessionThatItsWorkerLacksIsNoReplica) {
  StartWorkers({{0, 1}, {2, 3}});
  workers_[1]->Lack({"m@1#0"});
  ExpectSame(Run(), {2, 3});
  EXPECT_EQ(replicas_->live_experts(), 2);
  workers_[0]->Lack({"m@1#0"});
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(Run(), StatusIs(absl::StatusCode::kUnavailable,
                                HasSubstr("no expert worker")));
    EXPECT_EQ(replicas_->live_experts(), 0);
  }
  ExpectNothingLeft();
  // The workers may serve other models.
  for (int w = 0; w < 2; ++w) EXPECT_EQ(StateOf(w), WorkerHealth::State::kGood);
  // The sessions are asked for until they are there.
  const int pings = workers_[1]->pings();
  while (workers_[1]->pings() < pings + 2) std::this_thread::yield();
  EXPECT_EQ(replicas_->live_experts(), 0);
  workers_[1]->Lack({});
  while (replicas_->live_experts() < 2) std::this_thread::yield();
  ExpectSame(Run(), {0, 1});
  // The next placement is believed at first.
  ReplicaGroup next = *group_;
  next.version = 2;
  next.holdings[0].session = "m@1#1";
  ASSERT_OK(replicas_->Update(std::make_shared<ReplicaGroup>(next)));
  EXPECT_EQ(replicas_->live_experts(), 4);
  ExpectSame(Run());
}

// A worker that was restarted is probed, and is alive.
TEST_F(ServingExchangeTest, ARestartedWorkerLacksItsSessions) {
  StartWorkers({{0, 1, 2, 3}});
  workers_[0]->Lack({"m@1#0"});
  group_->holdings[0].stub->state().Health(
      [](WorkerHealth& health) { health.OnFailure(Clock::now()); });
  WaitForState(0, WorkerHealth::State::kGood);
  EXPECT_THAT(Run(), StatusIs(absl::StatusCode::kUnavailable,
                              HasSubstr("no expert worker")));
  EXPECT_EQ(workers_[0]->runs(), 1);
  workers_[0]->Lack({});
  while (replicas_->live_experts() < 4) std::this_thread::yield();
  ExpectSame(Run());
}

TEST_F(ServingExchangeTest, FullQueuesAndBugsAreErrors) {
  StartWorkers({{0, 1, 2, 3}, {0, 1, 2, 3}});
  absl::Status answer = absl::ResourceExhaustedError("the queue is full");
  for (const auto& worker : workers_) {
    worker->Instead([&](const Sender& sender, const ExpertFrame& frame) {
      ExpertFrame reply;
      reply.header.set_kind(v1::ExpertFrameHeader::REPLY);
      reply.header.set_call_id(frame.header.call_id());
      *reply.header.mutable_status() = ToProtoStatus(answer);
      if (answer.ok()) {
        reply.Add("", Tensor::Zeros(ElementType::kFloat32, {1, 1}));
      }
      // The router may have ended the stream because of the previous call.
      (void)sender->Send(std::move(reply));
    });
  }
  EXPECT_THAT(Run(), StatusIs(absl::StatusCode::kResourceExhausted,
                              HasSubstr("the queue is full")));
  EXPECT_LE(workers_[0]->runs() + workers_[1]->runs(), 4);
  answer = absl::InvalidArgumentError("no such operand");
  EXPECT_THAT(Run(), StatusIs(absl::StatusCode::kInvalidArgument,
                              HasSubstr("no such operand")));
  answer = absl::OkStatus();
  EXPECT_THAT(
      Run(), StatusIs(absl::StatusCode::kInternal, HasSubstr("got f32[1, 1]")));
  ExpectNothingLeft();
}

// Unlike a full queue, a call that is too long, or has too long a reply, is not
// the worker's fault.
TEST_F(ServingExchangeTest, WhoCannotTakeACallIsNoneTheWorseForIt) {
  StartWorkers({{0, 1, 2, 3}, {0, 1, 2, 3}});
  for (const ReplicaHolding& holding : group_->holdings) {
    holding.stub->state().Health([](WorkerHealth& health) {
      health = WorkerHealth({.first_hedge_delay = hours(1)});
    });
  }
  const auto ejections = [&](int count) {
    return HasMetric(
        absl::StrCat("gshard_worker_ejections_total{worker=\"w0\"} ", count));
  };
  absl::Status answer = absl::ResourceExhaustedError("the reply is too long");
  const auto refuse = [&](const Sender& sender, const ExpertFrame& frame) {
    ExpertFrame reply;
    reply.header.set_kind(v1::ExpertFrameHeader::REPLY);
    reply.header.set_call_id(frame.header.call_id());
    *reply.header.mutable_status() = ToProtoStatus(answer);
    (void)sender->Send(std::move(reply));
  };
  for (const auto& worker : workers_) worker->Instead(refuse);
  const absl::Status too_long = Run().status();
  EXPECT_THAT(too_long, StatusIs(absl::StatusCode::kResourceExhausted,
                                 HasSubstr("the reply is too long")));
  EXPECT_FALSE(RetryDelay(too_long).has_value());
  EXPECT_TRUE(ejections(0));
  answer = WithRetryDelay(absl::ResourceExhaustedError("the queue is full"),
                          milliseconds(100));
  const absl::Status full = Run().status();
  EXPECT_THAT(full, StatusIs(absl::StatusCode::kResourceExhausted,
                             HasSubstr("the queue is full")));
  EXPECT_TRUE(RetryDelay(full).has_value());
  EXPECT_TRUE(ejections(1));
  // The end of a stream says nothing of each of its calls.
  for (const auto& worker : workers_) {
    worker->Instead([](const Sender& sender, const ExpertFrame&) {
      sender->Finish(absl::ResourceExhaustedError("another frame is too long"));
    });
  }
  const absl::Status ended = Run().status();
  EXPECT_THAT(ended, StatusIs(absl::StatusCode::kResourceExhausted,
                              HasSubstr("another frame is too long")));
  EXPECT_TRUE(RetryDelay(ended).has_value());
}

TEST_F(ServingExchangeTest, VerifyNamesWhoCannotBeReached) {
  StartWorkers({{0, 1}, {2, 3}, {2, 3}});
  EXPECT_OK(replicas_->Verify(*group_));
  workers_[2]->AnswerPings(false);
  // Another worker has the same experts.
  EXPECT_OK(replicas_->Verify(*group_, milliseconds(50)));
  EXPECT_EQ(StateOf(2), WorkerHealth::State::kFailed);
  workers_[0]->AnswerPings(false);
  EXPECT_THAT(replicas_->Verify(*group_, milliseconds(50)),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("'w")));
}

// Models share workers but ping separately: a worker that another model, which
// may be gone, has marked as failed is pinged by this one.
TEST_F(ServingExchangeTest, WhatAnotherModelFindsIsLookedAt) {
  StartWorkers({{0, 1}, {2, 3}});
  // The ping thread's first look happens in this time and finds nothing.
  std::this_thread::sleep_for(milliseconds(50));
  group_->holdings[0].stub->state().Health(
      [](WorkerHealth& health) { health.OnFailure(Clock::now()); });
  WaitForState(0, WorkerHealth::State::kGood);
  ExpectSame(Run());
}

// A model that goes leaves the workers as it found them to those that stay.
TEST_F(ServingExchangeTest, AnOpenPingOfASetThatGoesSaysNothing) {
  StartWorkers({{0, 1, 2, 3}});
  workers_[0]->AnswerPings(false);
  WorkerState& worker = group_->holdings[0].stub->state();
  worker.Health([](WorkerHealth& health) { health.OnFailure(Clock::now()); });
  ASSERT_OK(replicas_->Update(group_));  // wakes its thread
  while (workers_[0]->pings() == 0) std::this_thread::yield();
  replicas_ = nullptr;
  EXPECT_EQ(worker.health(), WorkerHealth::State::kFailed);
  worker.Health([](WorkerHealth& health) {
    EXPECT_LE(health.next_probe(), Clock::now());
  });
  // Another set asks again.
  workers_[0]->AnswerPings(true);
  replicas_ = std::make_unique<ReplicaSet>(4, group_, exchange_metrics_);
  WaitForState(0, WorkerHealth::State::kGood);
}

}  // namespace
}  // namespace gshard
