// LocalGroup: where the members of a group of threads meet.

#ifndef SERVICES_COLLECTIVES_LOCAL_GROUP_H_
#define SERVICES_COLLECTIVES_LOCAL_GROUP_H_

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "services/collectives/communicator.h"

namespace gshard {

// Thread-safe: each member's thread calls Exchange, any thread calls Break.
class LocalGroup {
 public:
  explicit LocalGroup(int size);

  int size() const { return static_cast<int>(members_.size()); }

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

  // Whether all members' sizes agree. mutex_ must be held.
  absl::Status CheckSizes() const;
  // Bytes that travel. mutex_ must be held.
  size_t TotalBytes() const;
  void CopyTo(int rank) const;

  std::mutex mutex_;
  std::condition_variable all_came_;  // or the group broke
  std::condition_variable all_copied_;
  std::vector<Member> members_;
  absl::Status broken_;
  absl::Status outcome_;  // of the exchange for which all came
  bool each_copies_ = false;
  uint64_t exchange_ = 0;  // exchanges completed so far
  uint64_t copied_exchange_ = 0;
  int came_ = 0;
  int copied_ = 0;
};

}  // namespace gshard

#endif  // SERVICES_COLLECTIVES_LOCAL_GROUP_H_
