// MicrobatchSchedule: which router runs which microbatch of a step. Decisions
// only: no clock, no threads, no messages.
//
// Routers get the lowest waiting microbatches, the least busy router first.
// While more microbatches wait than there are routers, each router has one
// queued behind its running one, so that it never waits for the coordinator;
// the last ones go to idle routers.
//
// Gradients are summed in microbatch order, so early ones are buffered. Their
// number is bounded by a window: a microbatch is assigned only if it is less
// than `window` after the oldest missing one, i.e. the oldest that is not
// finished. As all before that one are in every sum, early ones are after it
// and within the window: fewer than `window`. Four per router keep all routers
// busy, so the window is no larger.
//
// This cannot deadlock. The oldest missing microbatch is always within the
// window, on any attempt, and is the first that Assign() considers. So as long
// as there is a router it is either running, or its Release() is due, or
// Assign() assigns it when a router has less than its share; and a router gets
// there, since its earlier microbatches finish, fail or are lost. Once the
// oldest is finished the window moves on, to the end of the step.

#ifndef SERVICES_COORDINATOR_TRAINING_MICROBATCH_SCHEDULE_H_
#define SERVICES_COORDINATOR_TRAINING_MICROBATCH_SCHEDULE_H_

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "services/coordinator/membership/members.h"

namespace gshard {

struct Assignment {
  MemberKey router;
  int32_t microbatch = 0;
  int32_t attempt = 0;

  bool operator==(const Assignment&) const = default;
};

// Not thread-safe.
class MicrobatchSchedule {
 public:
  // `window` is the maximum window. REQUIRES: count, window >= 1.
  MicrobatchSchedule(int32_t count, int32_t window)
      : window_(window), microbatches_(count) {
    for (int32_t i = 0; i < count; ++i) waiting_.insert(i);
  }

  // Sets the current routers. Unfinished microbatches of others wait again, as
  // the next attempt.
  void SetRouters(const std::vector<MemberKey>& routers);

  // Makes all assignments that are possible now.
  std::vector<Assignment> Assign();

  // Whether `assignment` is current, i.e. neither finished nor taken back.
  bool IsCurrent(const Assignment& assignment) const;

  // It is finished. REQUIRES: IsCurrent.
  void Finish(const Assignment& assignment);

  // It must be rerun as the next attempt, not before Release(). Failed()
  // returns how often this microbatch has failed; preemption does not count.
  // REQUIRES: IsCurrent.
  int32_t Failed(const Assignment& assignment);
  void Preempted(const Assignment& assignment);
  void Release(int32_t microbatch);

  // The oldest unfinished one; their number when complete.
  int32_t oldest() const { return oldest_; }
  bool complete() const { return finished_ == microbatches_.size(); }

  // attempts()[i] is the attempt that counts for microbatch i.
  std::vector<int32_t> attempts() const;

 private:
  struct Microbatch {
    int32_t attempt = 0;
    int32_t failures = 0;
    bool assigned = false;
    bool finished = false;
    MemberKey router;  // if assigned
  };

  const int32_t window_;
  std::vector<Microbatch> microbatches_;
  int32_t oldest_ = 0;
  std::set<int32_t> waiting_;
  std::map<MemberKey, std::set<int32_t>> routers_;  // with what they run
  size_t finished_ = 0;
};

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_TRAINING_MICROBATCH_SCHEDULE_H_
