// JobMailbox: all events for a job's thread: replies of members, disk results,
// membership changes and requests of the coordinator. They are processed in
// order, one at a time, while the thread waits; so the state that they change
// needs no lock.

#ifndef SERVICES_COORDINATOR_TRAINING_JOB_MAILBOX_H_
#define SERVICES_COORDINATOR_TRAINING_JOB_MAILBOX_H_

#include <deque>
#include <functional>
#include <utility>

#include "services/base/monotonic_time.h"
#include "services/base/mutex.h"

namespace gshard {

class JobMailbox {
 public:
  explicit JobMailbox(std::function<MonotonicTime()> clock = MonotonicTime::Now)
      : clock_(std::move(clock)) {}
  virtual ~JobMailbox() = default;

  // Thread-safe; these don't block.

  // Runs `event` on the job's thread. Dropped after Close().
  void Post(std::function<void()> event);
  void TellMembersChanged() {
    Post([this] { members_changed_ = true; });
  }
  // End the job: now; after the current step; silently.
  void Cancel() {
    Post([this] { cancelled_ = true; });
  }
  void Stop() {
    Post([this] { stopping_ = true; });
  }
  void Halt() {
    Post([this] { halted_ = true; });
  }

  // On the job's thread:

  // Runs the next event, or returns at `until`, whichever comes first.
  virtual void Next(MonotonicTime until);
  // Stops accepting events and drops pending ones.
  void Close();

  bool cancelled() const { return cancelled_; }
  bool stopping() const { return stopping_; }
  bool halted() const { return halted_; }
  // Whether members have changed since the last call.
  bool TakeMembersChanged() { return std::exchange(members_changed_, false); }

 protected:
  // Runs a pending event; false if there is none.
  bool RunOne();

 private:
  const std::function<MonotonicTime()> clock_;
  Mutex mutex_;
  CondVar came_;
  std::deque<std::function<void()>> events_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;

  // Used only on the job's thread.
  bool cancelled_ = false;
  bool stopping_ = false;
  bool halted_ = false;
  bool members_changed_ = false;
};

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_TRAINING_JOB_MAILBOX_H_
