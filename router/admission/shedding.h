// Load shedding when workers have no room for the rows of a batch.

#ifndef ROUTER_ADMISSION_SHEDDING_H_
#define ROUTER_ADMISSION_SHEDDING_H_

#include <cstdint>
#include <set>
#include <vector>

#include "router/admission/fair_queue.h"

namespace gshard {

// The requests to refuse among those of `sentences`: the newer half, or the
// only one. A request is answered as a whole, so all of its sentences are
// dropped. The others need about half the room, so a batch of n requests fits
// after log2(n) rounds.
std::set<uint64_t> RequestsToShed(
    const std::vector<WaitingSentence>& sentences);

}  // namespace gshard

#endif  // ROUTER_ADMISSION_SHEDDING_H_
