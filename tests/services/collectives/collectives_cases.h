// Checks the collectives on many arguments against the plain loops of
// reference_collectives.h. A case runs on every device of a world, over any
// transport: arguments are functions of the rank, so each device computes those
// of all members, and the result it must get.

#ifndef TESTS_SERVICES_COLLECTIVES_COLLECTIVES_CASES_H_
#define TESTS_SERVICES_COLLECTIVES_COLLECTIVES_CASES_H_

#include "absl/status/status.h"
#include "tests/services/collectives/world.h"

namespace gshard {

// Runs every case on one device of `world`; all devices call it.
//
// Errors: those of the first case that fails, prefixed with its name; DataLoss
// if a result differs from that of the plain loops.
absl::Status RunCollectivesCases(World& world);

}  // namespace gshard

#endif  // TESTS_SERVICES_COLLECTIVES_COLLECTIVES_CASES_H_
