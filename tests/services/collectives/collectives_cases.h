// The collectives on many arguments, each checked against the plain loops of
// reference_collectives.h. A case runs on every device of a world, whatever
// carries its bytes: each device makes all members' arguments itself, as they
// are functions of the rank, and so knows what it must get.

#ifndef TESTS_SERVICES_COLLECTIVES_COLLECTIVES_CASES_H_
#define TESTS_SERVICES_COLLECTIVES_COLLECTIVES_CASES_H_

#include "absl/status/status.h"
#include "services/collectives/world.h"

namespace gshard {

// Runs every case on one device of `world`; all devices call it.
//
// Errors: of the first case that fails, with its name in front; DataLoss if a
// result is not that of the plain loops.
absl::Status RunCollectivesCases(World& world);

}  // namespace gshard

#endif  // TESTS_SERVICES_COLLECTIVES_COLLECTIVES_CASES_H_
