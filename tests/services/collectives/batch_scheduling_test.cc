#include "services/collectives/batch_scheduling.h"

#include <gtest/gtest.h>

#include <thread>

namespace gshard {
namespace {

int Policy() {
  int policy = -1;
  sched_param parameters;
  pthread_getschedparam(pthread_self(), &policy, &parameters);
  return policy;
}

TEST(BatchSchedulingTest, ThreadsStartedMeanwhileInheritIt) {
  int inside = -1, after = -1;
  {
    const BatchScheduling batch;
    std::thread([&] { inside = Policy(); }).join();
  }
  std::thread([&] { after = Policy(); }).join();
  EXPECT_EQ(inside, SCHED_BATCH);
  EXPECT_EQ(after, SCHED_OTHER);
}

}  // namespace
}  // namespace gshard
