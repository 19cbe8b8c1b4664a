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
#include "services/exchange/replica_set.h"
#include "tests/router/workers/serving_exchange_fixture.h"

namespace gshard {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Sender = FakeWorker::Sender;

using ServingExchangeTest = ServingExchangeFixture;

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
  group_->holdings[1].stub->state().Health(
      [](WorkerHealth& health) { health = WorkerHealth(hours(1)); });
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
  group_->holdings[1].stub->state().Health(
      [](WorkerHealth& health) { health = WorkerHealth(hours(1)); });
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
  group_->holdings[1].stub->state().Health(
      [](WorkerHealth& health) { health = WorkerHealth(hours(1)); });
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
  group_->holdings[1].stub->state().Health(
      [](WorkerHealth& health) { health = WorkerHealth(hours(1)); });
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

// It answers pings, at first as if it were only busy.
TEST_F(ServingExchangeTest, ABlockedWorkerWithoutReplicasIsGivenUp) {
  StartWorkers({{0, 1}, {2, 3}});
  workers_[0]->Instead([](const Sender&, const ExpertFrame&) {});
  ::testing::internal::CaptureStderr();
  auto run = std::async(std::launch::async,
                        [&] { return Run(std::chrono::seconds(30)); });
  while (workers_[0]->pings() == 0) std::this_thread::yield();
  WaitForState(0, WorkerHealth::State::kGood);
  workers_[0]->SetPingStatus(absl::UnavailableError("its segments do not end"));
  ExpectSame(run.get(), {0, 1});
  EXPECT_EQ(replicas_->live_experts(), 2);
  // Nobody waits for it from now on.
  ExpectSame(Run(), {0, 1});
  EXPECT_EQ(workers_[0]->runs(), 1);
  workers_[0]->Instead(nullptr);
  workers_[0]->SetPingStatus(absl::OkStatus());
  WaitForState(0, WorkerHealth::State::kGood);
  ExpectSame(Run());
  ExpectNothingLeft();
  replicas_ = nullptr;  // and its thread, which logs
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("\"worker\":\"w0\""),
                    HasSubstr("its segments do not end")));
}

// The only other replica has failed when the worker is late, and is back soon.
TEST_F(ServingExchangeTest, AHedgeThatWasNotSentIsSentLater) {
  StartWorkers({{0, 1, 2, 3}, {0, 1, 2, 3}});
  WorkerState& other = group_->holdings[1].stub->state();
  other.Health([](WorkerHealth& health) {
    health = WorkerHealth(hours(1));
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

// The same if that replica has only some of the experts, and another the rest.
TEST_F(ServingExchangeTest, WhatAHedgeLeavesOutIsSentLater) {
  StartWorkers({{0, 1, 2, 3}, {0, 1}, {2, 3}});
  for (int w = 1; w < 3; ++w) {
    group_->holdings[w].stub->state().Health([](WorkerHealth& health) {
      health = WorkerHealth(hours(1));
      health.OnFailure(Clock::now());
      health.OnProbeSent();
    });
  }
  const auto is_back = [](WorkerHealth& health) {
    health.OnProbeReply(Clock::now(), /*ok=*/true);
  };
  workers_[0]->Instead([](const Sender&, const ExpertFrame&) {});
  auto run = std::async(std::launch::async,
                        [&] { return Run(std::chrono::seconds(20)); });
  workers_[0]->WaitForFrames(1);
  group_->holdings[1].stub->state().Health(is_back);
  workers_[1]->WaitForFrames(1);
  group_->holdings[2].stub->state().Health(is_back);
  ExpectSame(run.get());
  EXPECT_EQ(workers_[2]->runs(), 1);
}

TEST_F(ServingExchangeTest, TheNextIsAskedIfAHedgeIsLateAsWell) {
  StartWorkers({{0, 1, 2, 3}, {0, 1, 2, 3}, {0, 1, 2, 3}});
  PreferTheFirst();
  group_->holdings[2].stub->state().Health(
      [](WorkerHealth& health) { health = WorkerHealth(hours(1)); });
  for (int w = 0; w < 2; ++w) {
    workers_[w]->Instead([](const Sender&, const ExpertFrame&) {});
  }
  ExpectSame(Run(std::chrono::seconds(20)));
  for (int w = 0; w < 3; ++w) EXPECT_EQ(workers_[w]->runs(), 1);
  PreferTheFirst(-1000);
  ExpectNothingLeft();
}

TEST_F(ServingExchangeTest, AHedgeThatFailsIsSentAgainWhereThereIsNoNext) {
  for (const absl::Status& failure :
       {absl::UnavailableError("restarted"),
        WithRetryDelay(absl::ResourceExhaustedError("the queue is full"),
                       milliseconds(100))}) {
    replicas_ = nullptr;
    group_ = nullptr;
    workers_.clear();
    StartWorkers({{0, 1, 2, 3}, {0, 1, 2, 3}});
    PreferTheFirst();
    workers_[0]->Instead([](const Sender&, const ExpertFrame&) {});
    workers_[1]->Instead([&](const Sender& sender, const ExpertFrame&) {
      workers_[1]->Instead(nullptr);
      sender->Finish(failure);
    });
    ExpectSame(Run(std::chrono::seconds(20)));
    EXPECT_EQ(workers_[0]->runs(), 1);
    EXPECT_EQ(workers_[1]->runs(), 2);
  }
}

// The worker goes on answering pings.
TEST_F(ServingExchangeTest, AHedgeThatFailsIsSentToTheNext) {
  StartWorkers({{0, 1, 2, 3}, {0, 1, 2, 3}, {0, 1, 2, 3}});
  PreferTheFirst();
  group_->holdings[2].stub->state().Health(
      [](WorkerHealth& health) { health = WorkerHealth(hours(1)); });
  workers_[0]->Instead([](const Sender&, const ExpertFrame&) {});
  workers_[1]->AnswerPings(false);
  workers_[1]->Instead([](const Sender& sender, const ExpertFrame&) {
    sender->Finish(absl::UnavailableError("killed"));
  });
  ExpectSame(Run(std::chrono::seconds(20)));
  EXPECT_EQ(workers_[1]->runs(), 1);
  EXPECT_EQ(workers_[2]->runs(), 1);
  PreferTheFirst(-1000);
  ExpectNothingLeft();
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

TEST_F(ServingExchangeTest, AWorkerThatLacksASessionIsAskedOnce) {
  StartWorkers({{0, 1, 2, 3}, {0, 1, 2, 3}});
  group_->holdings[1].stub->state().Health(
      [](WorkerHealth& health) { health = WorkerHealth(hours(1)); });
  PreferTheFirst();
  workers_[0]->Lack({"m@1#0"});
  for (int i = 0; i < 5; ++i) ExpectSame(Run());
  EXPECT_EQ(workers_[0]->runs(), 1);
  EXPECT_EQ(workers_[1]->runs(), 5);
  // Once it answers for the session, it gets calls again.
  workers_[0]->Lack({});
  while (workers_[0]->runs() == 1) ExpectSame(Run());
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
    holding.stub->state().Health(
        [](WorkerHealth& health) { health = WorkerHealth(hours(1)); });
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
