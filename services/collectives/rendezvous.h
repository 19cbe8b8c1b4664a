// Rendezvous: how the members of a group come together when each of them can
// talk to a third party, but no folder is shared and nobody has an address yet.
//
// Each member makes its end and tells the third party its addresses, one for
// each member; once all have, each is told those that the others have for it,
// and joins. A member that is lost, or Abort(), ends the wait of those that
// wait for it.

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
  // kMaxRendezvousAddressBytes each; some may be empty, the own one is.
  virtual const std::vector<std::string>& addresses() const = 0;

  // Waits for the other members; addresses[r] is what the member of rank r has
  // for this one. The group is owned by this object. To be called once.
  //
  // Errors: InvalidArgument if these are not addresses of such members;
  // Unavailable or DeadlineExceeded if one of them does not come; Cancelled
  // after Abort().
  virtual absl::StatusOr<Communicator*> Join(
      absl::Span<const std::string> addresses) = 0;

  // Makes Join() and exchanges, those that run and later ones, return soon:
  // here with Cancelled, with Unavailable on members that wait for this one. On
  // any thread.
  virtual void Abort() = 0;
};

}  // namespace gshard

#endif  // SERVICES_COLLECTIVES_RENDEZVOUS_H_
