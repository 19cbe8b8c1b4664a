#include "services/base/thread_priority.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "services/base/check.h"

namespace gshard {
namespace {

// One nice level changes a thread's weight by this factor (sched(7)).
constexpr double kWeightStep = 1.25;
constexpr int kMaxNiceness = 19;

}  // namespace

int NicenessOfShare(int64_t percent) {
  CHECK(percent >= 1 && percent <= 50);
  const double others = (100.0 - percent) / percent;
  const int steps =
      static_cast<int>(std::lround(std::log(others) / std::log(kWeightStep)));
  return std::min(kMaxNiceness, getpriority(PRIO_PROCESS, getpid()) + steps);
}

// On Linux, process 0 means the calling thread.
void BeNice(int niceness) {
  if (ThreadNiceness() < niceness) setpriority(PRIO_PROCESS, 0, niceness);
}

int ThreadNiceness() { return getpriority(PRIO_PROCESS, 0); }

}  // namespace gshard
