// MicrobatchSchedule: which router runs which microbatch of a step. Decisions
// only: no clock, no threads, no messages.
//
// Routers get the lowest microbatches that wait, the least busy router first.
// As long as more microbatches wait than there are routers, each router has one
// queued behind the one that it runs, so that it never waits for the
// coordinator; the last ones go to routers that are idle.
//
// Gradients are summed in order of their microbatches, so early ones are
// buffered. Their number is bounded by a window: a microbatch is handed out
// only if it is less than `window` behind the oldest one that is missing, i.e.
// not finished. As all before that one are in every sum, what is early lies
// behind it and within the window: fewer than `window`. Four for each router
// that is there keep all of them busy, so the window is no larger.
//
// This cannot deadlock. The oldest missing microbatch is within the window by
// itself, on its first attempt as on any later one, and is the first that
// Assign() looks at when it waits. So as long as there is a router it is either
// being run, or its Release() is due, or Assign() hands it out when a router
// has less than its share; and a router gets there, since what it was given
// before is finished, fails or is lost. Once the oldest is finished the window
// moves on, to the end of the step.

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
  // `window` is the largest that there may be. REQUIRES: count, window >= 1.
  MicrobatchSchedule(int32_t count, int32_t window)
      : window_(window), microbatches_(count) {
    for (int32_t i = 0; i < count; ++i) waiting_.insert(i);
  }

  // Those that there are now. What others had not finished waits again, as the
  // next attempt.
  void SetRouters(const std::vector<MemberKey>& routers);

  // Assigns what can be assigned now.
  std::vector<Assignment> Assign();

  // Whether `assignment` is the one that counts, i.e. neither finished nor
  // taken back.
  bool IsCurrent(const Assignment& assignment) const;

  // It is finished. REQUIRES: IsCurrent.
  void Finish(const Assignment& assignment);

  // It must be rerun as the next attempt, not before Release(). Failed()
  // returns how often this microbatch has failed; a preempted one has not.
  // REQUIRES: IsCurrent.
  int32_t Failed(const Assignment& assignment);
  void Preempted(const Assignment& assignment);
  void Release(int32_t microbatch);

  // The oldest that is not finished; their number when complete.
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
