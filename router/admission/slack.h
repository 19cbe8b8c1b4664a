// Slack: whether a sentence may go before others that are due earlier.
//
// Turns are fair (fair_queue.h) as long as all that were promised an answer
// stay in time; when somebody would not, those that are due first go first.

#ifndef ROUTER_ADMISSION_SLACK_H_
#define ROUTER_ADMISSION_SLACK_H_

#include <chrono>
#include <utility>
#include <vector>

namespace gshard {

using SteadyTime = std::chrono::steady_clock::time_point;

class Slack {
 public:
  // With none, everybody may go first.
  Slack() = default;
  // Who goes first holds up the others by so much for each of its work.
  explicit Slack(double work_seconds) : work_seconds_(work_seconds) {}

  // Those that are due then can be held up so long, in seconds.
  // REQUIRES: in the order of deadlines.
  void Add(SteadyTime deadline, double seconds);

  // The first deadline that can be met. REQUIRES: Add() was called.
  SteadyTime first() const { return least_.front().first; }

  // May one that is due then, of so much work, go first?
  bool Allows(SteadyTime deadline, double work) const;
  // It does.
  void Spend(SteadyTime deadline, double work);

 private:
  // The least of those that are due before; null if there are none.
  const double* LeastBefore(SteadyTime deadline) const;

  double work_seconds_ = 0;
  double spent_ = 0;
  // A deadline, and the least that those due until then have.
  std::vector<std::pair<SteadyTime, double>> least_;
};

}  // namespace gshard

#endif  // ROUTER_ADMISSION_SLACK_H_
