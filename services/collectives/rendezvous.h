// Rendezvous: forms a group whose members can reach a third party, but share no
// folder and do not know each other's addresses.
//
// Each member creates its end and sends the third party its addresses, one per
// member; once all have, each receives the addresses that the others have for
// it, and joins. The loss of a member, or Abort(), ends the wait of the others.

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

// Of one address.
inline constexpr size_t kMaxRendezvousAddressBytes = 256;

// One thread at a time, but for Abort().
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;

  // addresses()[r] is for the member of rank r. Opaque bytes, at most
  // kMaxRendezvousAddressBytes each; some may be empty, as is the member's own.
  virtual const std::vector<std::string>& addresses() const = 0;

  // Waits for the other members; addresses[r] is what the member of rank r has
  // for this one. The group is owned by this object. To be called once.
  //
  // Errors: InvalidArgument if these are not addresses of such members;
  // Unavailable or DeadlineExceeded if one of them does not come; Cancelled
  // after Abort().
  virtual absl::StatusOr<Communicator*> Join(
      absl::Span<const std::string> addresses) = 0;

  // Makes running and later calls of Join() and exchanges return soon: with
  // Cancelled here, with Unavailable on members that wait for this one. From
  // any thread.
  virtual void Abort() = 0;
};

}  // namespace gshard

#endif  // SERVICES_COLLECTIVES_RENDEZVOUS_H_
