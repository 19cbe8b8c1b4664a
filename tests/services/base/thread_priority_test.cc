#include "services/base/thread_priority.h"

#include <gtest/gtest.h>

#include <cmath>
#include <thread>

namespace gshard {
namespace {

TEST(ThreadPriorityTest, ASharesNicenessGivesThatShare) {
  const int own = ThreadNiceness();
  EXPECT_EQ(NicenessOfShare(50), own);
  EXPECT_EQ(NicenessOfShare(1), 19);  // the maximum
  for (int percent = 2; percent <= 50; ++percent) {
    const int niceness = NicenessOfShare(percent);
    if (niceness == 19) continue;
    const double weight = std::pow(1.25, own - niceness);
    EXPECT_NEAR(weight / (1 + weight), percent / 100.0, 0.028) << percent;
  }
}

TEST(ThreadPriorityTest, IsTheThreadsOwnAndOnlyGrows) {
  const int before = ThreadNiceness();
  std::thread([before] {
    BeNice(before + 3);
    EXPECT_EQ(ThreadNiceness(), before + 3);
    BeNice(before + 1);
    EXPECT_EQ(ThreadNiceness(), before + 3);
  }).join();
  EXPECT_EQ(ThreadNiceness(), before);
}

}  // namespace
}  // namespace gshard
