// Communicator: one member's end of a group of processes or threads.
//
// All communication of a partitioned program uses one primitive, an exchange of
// bytes between all pairs of a group; collectives.h builds the collectives on
// it, with the same order of arithmetic on every transport.

#ifndef SERVICES_COLLECTIVES_COMMUNICATOR_H_
#define SERVICES_COLLECTIVES_COMMUNICATOR_H_

#include <cstddef>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace gshard {

// Bytes to send, and buffers for received bytes.
struct SendBytes {
  const void* data = nullptr;
  size_t size = 0;
};
struct ReceiveBytes {
  void* data = nullptr;
  size_t size = 0;
};

// All members make the same calls in the same order. Not thread-safe: one
// thread per member.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Whether the bytes of an exchange are in the memory of this member's GPU,
  // complete when the call begins. Otherwise they are the host's, as the
  // functions of collectives.h and ragged_exchange.h require.
  virtual bool on_device() const { return false; }

  // Sends send[r] to rank r and fills receive[r] with the bytes that rank r
  // sends here; both have size() entries, including the own one. An entry may
  // be empty if both ends agree. Blocks until everything is received and `send`
  // may be reused.
  //
  // Errors: InvalidArgument for spans of another length or sizes that two ends
  // disagree on, where that is detectable; Unavailable when a member is gone;
  // DeadlineExceeded when one does not respond; Cancelled after an abort.
  virtual absl::Status Exchange(absl::Span<const SendBytes> send,
                                absl::Span<const ReceiveBytes> receive) = 0;
};

}  // namespace gshard

#endif  // SERVICES_COLLECTIVES_COMMUNICATOR_H_
