// MicrobatchSchedule: which router runs which microbatch of a step. Decisions
// only: no clock, no threads, no messages.
//
// Routers get the lowest microbatches that wait, the least busy router first.
// As long as more microbatches wait than there are routers, each router has one
// queued behind the one that it runs, so that it never waits for the
// coordinator; the last ones go to routers that are idle.

#ifndef SERVICES_COORDINATOR_MICROBATCH_SCHEDULE_H_
#define SERVICES_COORDINATOR_MICROBATCH_SCHEDULE_H_

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "services/coordinator/members.h"

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
  // REQUIRES: count >= 1.
  explicit MicrobatchSchedule(int32_t count) : microbatches_(count) {
    for (int32_t i = 0; i < count; ++i) waiting_.insert(i);
  }

  void AddRouter(const MemberKey& router) { routers_[router]; }

  // What it had not finished waits again, as the next attempt.
  void RemoveRouter(const MemberKey& router);

  // Assigns what can be assigned now.
  std::vector<Assignment> Assign();

  // Whether `assignment` is the one that counts, i.e. neither finished nor
  // taken back.
  bool IsCurrent(const Assignment& assignment) const;

  // It is finished. REQUIRES: IsCurrent.
  void Finish(const Assignment& assignment);

  // It failed and must run again, not before Release(). Returns how often this
  // microbatch has been handed out. REQUIRES: IsCurrent.
  int32_t Fail(const Assignment& assignment);
  void Release(int32_t microbatch);

  bool complete() const { return finished_ == microbatches_.size(); }
  size_t num_routers() const { return routers_.size(); }

  // attempts()[i] is the attempt that counts for microbatch i.
  std::vector<int32_t> attempts() const;

 private:
  struct Microbatch {
    int32_t attempt = 0;
    bool assigned = false;
    bool finished = false;
    MemberKey router;  // if assigned
  };

  std::vector<Microbatch> microbatches_;
  std::set<int32_t> waiting_;
  std::map<MemberKey, std::set<int32_t>> routers_;  // with what they run
  size_t finished_ = 0;
};

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_MICROBATCH_SCHEDULE_H_
