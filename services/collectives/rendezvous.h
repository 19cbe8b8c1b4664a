// Rendezvous: forms a group whose members can reach a third party, but have no
// shared folder and do not know each other's addresses.
//
// Each member creates its end and sends the third party its addresses, one per
// member; once all have, each receives the others' addresses for it, and joins.
// The loss of a member, or Abort(), ends the others' wait.

#ifndef SERVICES_COLLECTIVES_RENDEZVOUS_H_
#define SERVICES_COLLECTIVES_RENDEZVOUS_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "services/collectives/communicator.h"

namespace gshard {

// Maximum size of an address.
inline constexpr size_t kMaxRendezvousAddressBytes = 256;

// One thread at a time, except for Abort().
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;

  // addresses()[r] is for the member of rank r. Opaque bytes, at most
  // kMaxRendezvousAddressBytes each; some, like the member's own, may be empty.
  virtual const std::vector<std::string>& addresses() const = 0;

  // Waits for the other members; addresses[r] is the address for this member
  // from the member of rank r. The group is owned by this object. Call once.
  //
  // Errors: InvalidArgument for malformed addresses; Unavailable or
  // DeadlineExceeded if a member does not come; Cancelled after Abort().
  virtual absl::StatusOr<Communicator*> Join(
      absl::Span<const std::string> addresses) = 0;

  // Makes running and later calls of Join() and exchanges return soon: with
  // Cancelled here, with Unavailable on members that wait for this one.
  // Thread-safe.
  virtual void Abort() = 0;
};

}  // namespace gshard

#endif  // SERVICES_COLLECTIVES_RENDEZVOUS_H_
