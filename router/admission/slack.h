// Slack: whether a sentence may overtake others with earlier deadlines.
//
// Turns are fair (fair_queue.h) as long as all promises hold; if one would
// break, the earliest deadline goes first.

#ifndef ROUTER_ADMISSION_SLACK_H_
#define ROUTER_ADMISSION_SLACK_H_

#include <chrono>
#include <utility>
#include <vector>

namespace gshard {

using SteadyTime = std::chrono::steady_clock::time_point;

class Slack {
 public:
  // Without limits: every sentence may go first.
  Slack() = default;
  // A sentence that goes first delays the others by this much per unit of its
  // work.
  explicit Slack(double work_seconds) : work_seconds_(work_seconds) {}

  // Work due at `deadline` can be delayed by `seconds`. REQUIRES: calls in the
  // order of deadlines.
  void Add(SteadyTime deadline, double seconds);

  // The first deadline that can be met. REQUIRES: Add() was called.
  SteadyTime first() const { return least_.front().first; }

  // Whether a sentence with this deadline and work may go first.
  bool Allows(SteadyTime deadline, double work) const;
  // Records that it does.
  void Spend(SteadyTime deadline, double work);

 private:
  // The least slack of earlier deadlines; null if there are none.
  const double* LeastBefore(SteadyTime deadline) const;

  double work_seconds_ = 0;
  double spent_ = 0;
  // A deadline, and the least slack of those due until then.
  std::vector<std::pair<SteadyTime, double>> least_;
};

}  // namespace gshard

#endif  // ROUTER_ADMISSION_SLACK_H_
