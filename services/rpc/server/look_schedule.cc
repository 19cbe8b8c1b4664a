#include "services/rpc/server/look_schedule.h"

#include <algorithm>

namespace gshard {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLookInterval{4};
constexpr milliseconds kBusyLookInterval{1};
// epoll does not report data that gRPC reads before epoll is polled. So all
// connections are checked periodically as long as any of them receives data.
constexpr milliseconds kSweepInterval{250};
constexpr int kIdleSweeps = 8;
constexpr milliseconds kNewcomerInterval{10};  // while some may not begin yet
constexpr milliseconds kTrimInterval{100};
constexpr milliseconds kTrimTime{300};

}  // namespace

LookSchedule::Clock::time_point LookSchedule::Next(
    const Waiting& waiting, Clock::time_point now) const {
  Clock::time_point next = next_trim_;
  if (waiting.newcomers) next = std::min(next, now + kNewcomerInterval);
  if (waiting.active) next = std::min(next, next_look_);
  if (waiting.calls || idle_sweeps_ < kIdleSweeps) {
    next = std::min(next, next_sweep_);
  }
  return next;
}

bool LookSchedule::TakeLook(Clock::time_point now) {
  if (now < next_look_) return false;
  next_look_ = now + (busy_ ? kBusyLookInterval : kLookInterval);
  return true;
}

bool LookSchedule::TakeSweep(Clock::time_point now) {
  if (now < next_sweep_) return false;
  next_sweep_ = now + kSweepInterval;
  ++idle_sweeps_;
  return true;
}

bool LookSchedule::TakeTrim(Clock::time_point now) {
  if (now < next_trim_) return false;
  next_trim_ = now - last_shutdown_ < kTrimTime ? now + kTrimInterval
                                                : Clock::time_point::max();
  return true;
}

void LookSchedule::OnShutdown(Clock::time_point now) {
  last_shutdown_ = now;
  next_trim_ = std::min(next_trim_, now + kTrimInterval);
}

}  // namespace gshard
