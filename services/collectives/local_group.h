// LocalGroup: the shared state of a group of threads.

#ifndef SERVICES_COLLECTIVES_LOCAL_GROUP_H_
#define SERVICES_COLLECTIVES_LOCAL_GROUP_H_

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

  // Communicator::Exchange of one member.
  absl::Status Exchange(int rank, absl::Span<const SendBytes> send,
                        absl::Span<const ReceiveBytes> receive);

  // Ends the group: exchanges that wait for a member, and all later ones,
  // return `why`. An exchange for which all have come completes. The first call
  // counts.
  void Break(const absl::Status& why);

 private:
  struct Member {
    absl::Span<const SendBytes> send;
    absl::Span<const ReceiveBytes> receive;
  };

  // Whether all members' sizes agree.
  absl::Status CheckSizes() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Bytes that travel.
  size_t TotalBytes() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Not analyzed: members copy for themselves without the lock, while members_
  // stays as it is until all of them have copied.
  void CopyTo(int rank) const ABSL_NO_THREAD_SAFETY_ANALYSIS;

  const int size_;
  Mutex mutex_;
  CondVar all_came_;  // or the group broke
  CondVar all_copied_;
  std::vector<Member> members_ ABSL_GUARDED_BY(mutex_);
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);
  // Of the exchange for which all came.
  absl::Status outcome_ ABSL_GUARDED_BY(mutex_);
  bool each_copies_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t exchange_ ABSL_GUARDED_BY(mutex_) = 0;  // exchanges completed so far
  uint64_t copied_exchange_ ABSL_GUARDED_BY(mutex_) = 0;
  int came_ ABSL_GUARDED_BY(mutex_) = 0;
  int copied_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace gshard

#endif  // SERVICES_COLLECTIVES_LOCAL_GROUP_H_
