// World: one device's end of all devices of a run, and its groups. In
// local_world.h devices are threads of one process, in gloo_world.h
// processes.

#ifndef TESTS_SERVICES_COLLECTIVES_WORLD_H_
#define TESTS_SERVICES_COLLECTIVES_WORLD_H_

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "services/collectives/communicator.h"

namespace gshard {

// Not thread-safe: one thread per device.
class World {
 public:
  virtual ~World() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // The group of these devices, ranked as listed: the member with group rank i
  // is device ranks[i]. Formed at the first call, which may wait for the other
  // members, and the same object afterwards; owned by this world. Two devices
  // must make the calls for their common groups in the same order.
  //
  // Errors: InvalidArgument if the list has a rank that does not exist or a
  // duplicate, or lacks this device; Unavailable, DeadlineExceeded or
  // Cancelled, as in Communicator::Exchange, if forming the group fails.
  virtual absl::StatusOr<Communicator*> Group(absl::Span<const int> ranks) = 0;
};

// The position of `rank` in `ranks`, a group in a world of `size` devices.
//
// Errors: InvalidArgument as in World::Group.
absl::StatusOr<int> RankInGroup(int rank, int size,
                                absl::Span<const int> ranks);

// The group of all devices, 0, 1, ..., size - 1.
//
// Errors: as World::Group.
absl::StatusOr<Communicator*> WholeGroup(World& world);

}  // namespace gshard

#endif  // TESTS_SERVICES_COLLECTIVES_WORLD_H_
