// Who gives way when workers have no room for the rows of a batch.

#ifndef ROUTER_ADMISSION_SHEDDING_H_
#define ROUTER_ADMISSION_SHEDDING_H_

#include <cstdint>
#include <set>
#include <vector>

#include "router/admission/fair_queue.h"

namespace gshard {

// The requests that are refused, of those that `sentences` belong to: the
// younger half, and the only one if there are no others. A request is answered
// as a whole, so all of its sentences go. Those that stay take about half of
// the room, so that a batch of n requests fits after log2(n) times.
std::set<uint64_t> RequestsToShed(
    const std::vector<WaitingSentence>& sentences);

}  // namespace gshard

#endif  // ROUTER_ADMISSION_SHEDDING_H_
