// LocalGroup: the shared state of a group of threads.

#ifndef TESTS_SERVICES_COLLECTIVES_LOCAL_GROUP_H_
#define TESTS_SERVICES_COLLECTIVES_LOCAL_GROUP_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "services/base/mutex.h"
#include "services/collectives/communicator.h"

namespace gshard {

// Thread-safe: each member's thread calls Exchange, any thread calls Break.
class LocalGroup {
 public:
  explicit LocalGroup(int size);

  int size() const { return size_; }

  // Implements Communicator::Exchange for one member.
  absl::Status Exchange(int rank, absl::Span<const SendBytes> send,
                        absl::Span<const ReceiveBytes> receive);

  // Ends the group: exchanges that wait for a member, and all later ones,
  // return `why`. An exchange that all members have entered completes. Only the
  // first call has an effect.
  void Break(const absl::Status& why);

 private:
  struct Member {
    absl::Span<const SendBytes> send;
    absl::Span<const ReceiveBytes> receive;
  };

  // Whether all members' sizes agree.
  absl::Status CheckSizes() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Bytes copied between members.
  size_t TotalBytes() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Not analyzed: each member copies its own data without the lock, while
  // members_ does not change until all have copied.
  void CopyTo(int rank) const ABSL_NO_THREAD_SAFETY_ANALYSIS;

  const int size_;
  Mutex mutex_;
  CondVar all_came_;  // or the group is broken
  CondVar all_copied_;
  std::vector<Member> members_ ABSL_GUARDED_BY(mutex_);
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);
  // Outcome of the latest exchange that all members entered.
  absl::Status outcome_ ABSL_GUARDED_BY(mutex_);
  bool each_copies_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t exchange_ ABSL_GUARDED_BY(mutex_) = 0;  // exchanges completed so far
  uint64_t copied_exchange_ ABSL_GUARDED_BY(mutex_) = 0;
  int came_ ABSL_GUARDED_BY(mutex_) = 0;
  int copied_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace gshard

#endif  // TESTS_SERVICES_COLLECTIVES_LOCAL_GROUP_H_
