#include "services/cluster/worker_health.h"

#include <gtest/gtest.h>

namespace gshard {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using State = WorkerHealth::State;

const WorkerHealth::Time kStart{};

TEST(WorkerHealthTest, HedgeDelayFollowsTheLatenciesOfCallsOfItsSize) {
  WorkerHealth health;
  EXPECT_EQ(health.HedgeDelay(4), milliseconds(100));
  for (int i = 0; i < 16; ++i) health.OnReply(4, milliseconds(9));
  EXPECT_EQ(health.HedgeDelay(4), milliseconds(18));
  EXPECT_EQ(health.HedgeDelay(4000), milliseconds(100));
  for (int i = 0; i < 16; ++i) health.OnReply(4000, milliseconds(80));
  EXPECT_EQ(health.HedgeDelay(4000), milliseconds(160));
  EXPECT_EQ(health.HedgeDelay(4), milliseconds(18));
  // Old replies are forgotten, and the delay is limited to 10 to 500 ms.
  for (int i = 0; i < 64; ++i) health.OnReply(4, microseconds(10));
  EXPECT_EQ(health.HedgeDelay(4), milliseconds(10));
  for (int i = 0; i < 64; ++i) health.OnReply(4, milliseconds(900));
  EXPECT_EQ(health.HedgeDelay(4), milliseconds(500));
}

TEST(WorkerHealthTest, AFailureIsForgottenWhenAProbeIsAnswered) {
  WorkerHealth health;
  EXPECT_EQ(health.next_probe(), WorkerHealth::Time::max());
  EXPECT_TRUE(health.OnFailure(kStart));
  EXPECT_FALSE(health.OnFailure(kStart));
  EXPECT_EQ(health.state(), State::kFailed);
  EXPECT_EQ(health.next_probe(), kStart);
  health.OnProbeSent();
  EXPECT_EQ(health.next_probe(), WorkerHealth::Time::max());
  health.OnProbeReply(kStart + milliseconds(5), /*ok=*/true);
  EXPECT_EQ(health.state(), State::kGood);
  EXPECT_EQ(health.next_probe(), WorkerHealth::Time::max());
}

TEST(WorkerHealthTest, ProbesBecomeRarerAndStartAnew) {
  WorkerHealth health;
  health.OnFailure(kStart);
  WorkerHealth::Time now = kStart;
  milliseconds waited{0};
  for (const int expected : {20, 40, 80, 160, 320, 640, 1000, 1000}) {
    health.OnProbeSent();
    health.OnProbeReply(now, /*ok=*/false);
    EXPECT_EQ(health.next_probe() - now, milliseconds(expected));
    now = health.next_probe();
  }
  health.OnProbeSent();
  health.OnProbeReply(now, /*ok=*/true);
  health.OnFailure(now);
  EXPECT_EQ(health.next_probe(), now);
  health.OnProbeSent();
  health.OnProbeReply(now, /*ok=*/false);
  EXPECT_EQ(health.next_probe() - now, milliseconds(20));
}

TEST(WorkerHealthTest, SilenceIsFirstSlowThenFailed) {
  WorkerHealth health;
  EXPECT_TRUE(health.OnSilence(kStart));
  EXPECT_FALSE(health.OnSilence(kStart));
  EXPECT_EQ(health.state(), State::kSlow);
  EXPECT_EQ(health.next_probe(), kStart);
  health.OnProbeSent();
  EXPECT_TRUE(health.OnFailure(kStart));
  EXPECT_EQ(health.state(), State::kFailed);
  EXPECT_FALSE(health.OnSilence(kStart));
  EXPECT_EQ(health.state(), State::kFailed);
  // The probe sent to the slow worker is still outstanding.
  EXPECT_EQ(health.next_probe(), WorkerHealth::Time::max());
  health.OnProbeReply(kStart, /*ok=*/true);
  EXPECT_EQ(health.state(), State::kGood);
}

// Whatever computes hangs, while pings are answered.
TEST(WorkerHealthTest, WhoAnswersProbesOnlyIsNotTrustedForLongerAndLonger) {
  WorkerHealth health;
  WorkerHealth::Time now = kStart;
  const auto leave_unanswered = [&] {
    health.OnSilence(now);
    health.OnProbeSent();
    health.OnProbeReply(now, /*ok=*/true);
    return health.OnUnanswered(now);
  };
  for (int i = 0; i < 2; ++i) {
    EXPECT_FALSE(leave_unanswered());
    EXPECT_EQ(health.state(), State::kGood);
  }
  for (const int seconds : {1, 2, 4, 8, 16, 30, 30}) {
    EXPECT_TRUE(leave_unanswered());
    EXPECT_EQ(health.state(), State::kSlow);
    // Calls that were under way do not count again.
    EXPECT_FALSE(health.OnUnanswered(now));
    // It is probed meanwhile.
    EXPECT_EQ(health.next_probe(), now);
    for (int i = 0; i < seconds; ++i) {
      EXPECT_EQ(health.state(), State::kSlow);
      health.OnProbeSent();
      health.OnProbeReply(now, /*ok=*/true);
      EXPECT_EQ(health.next_probe(), now + milliseconds(1000));
      now = health.next_probe();
    }
    health.OnProbeSent();
    health.OnProbeReply(now, /*ok=*/true);
    EXPECT_EQ(health.state(), State::kGood);
  }
  // A worker that fails meanwhile is slow, not good, when it is back.
  EXPECT_TRUE(leave_unanswered());
  EXPECT_TRUE(health.OnFailure(now));
  health.OnProbeSent();
  health.OnProbeReply(now, /*ok=*/true);
  EXPECT_EQ(health.state(), State::kSlow);
  // It is trusted again when it has answered a call.
  health.OnReply(4, milliseconds(9));
  EXPECT_EQ(health.state(), State::kGood);
  for (int i = 0; i < 2; ++i) {
    EXPECT_FALSE(leave_unanswered());
    EXPECT_EQ(health.state(), State::kGood);
  }
  EXPECT_TRUE(leave_unanswered());
  now += milliseconds(1000);
  health.OnProbeSent();
  health.OnProbeReply(now, /*ok=*/true);
  EXPECT_EQ(health.state(), State::kGood);
}

TEST(WorkerHealthTest, WhoStaysSilentIsProbedEachSecond) {
  WorkerHealth health;
  WorkerHealth::Time now = kStart + milliseconds(10'000);
  EXPECT_TRUE(health.OnSilence(now));
  EXPECT_FALSE(health.OnLongSilence(now));  // it is probed already
  health.OnProbeSent();
  EXPECT_FALSE(health.OnProbeReply(now, /*ok=*/true));
  EXPECT_FALSE(health.OnLongSilence(now + milliseconds(999)));
  EXPECT_EQ(health.state(), State::kGood);
  now += milliseconds(1000);
  EXPECT_TRUE(health.OnLongSilence(now));
  EXPECT_EQ(health.next_probe(), now);
  health.OnProbeSent();
  EXPECT_TRUE(health.OnProbeReply(now, /*ok=*/false));
  EXPECT_EQ(health.state(), State::kFailed);
  now += milliseconds(1000);
  EXPECT_FALSE(health.OnLongSilence(now));
  EXPECT_FALSE(health.OnProbeReply(now, /*ok=*/false));  // it had failed
}

TEST(WorkerHealthTest, ADroppedProbeSaysNothingAndIsSentAgain) {
  WorkerHealth health;
  health.OnFailure(kStart);
  health.OnProbeSent();
  health.OnProbeDropped();
  EXPECT_EQ(health.state(), State::kFailed);
  EXPECT_EQ(health.next_probe(), kStart);
}

TEST(HedgeBudgetTest, IsAShareOfAllCallsAndABurst) {
  HedgeBudget budget(/*share=*/0.1, /*burst=*/3);
  int taken = 0;
  const auto take_all = [&] {
    for (; budget.Allows(); ++taken) budget.Take();
  };
  take_all();
  EXPECT_EQ(taken, 3);
  for (int i = 0; i < 1000; ++i) {
    budget.OnCall();
    take_all();
  }
  EXPECT_GE(taken, 3 + 99);
  EXPECT_LE(taken, 3 + 100);
  for (int i = 0; i < 1000; ++i) budget.OnCall();
  taken = 0;
  take_all();
  EXPECT_EQ(taken, 3);
  // Hedges beyond it are not held against later ones.
  for (int i = 0; i < 100; ++i) budget.Take();
  for (int i = 0; i < 11; ++i) budget.OnCall();
  EXPECT_TRUE(budget.Allows());
}

}  // namespace
}  // namespace gshard
