// Paged float32 key-value caches for incremental decoding. Sequences that begin
// and end at any time share one buffer; each uses as many pages as it needs.
//
//   S  pages        P  positions of a page
//   R  rows, each one token of a different sequence
//   N  heads        D  width of a head
//
// A slot is a position of the whole buffer: page * P + position in the page.

#ifndef SERVICES_OPS_CACHE_H_
#define SERVICES_OPS_CACHE_H_

#include "absl/status/status.h"
#include "services/tensor/tensor.h"

namespace gshard {

// Whether every slot (i32[R]) is in [0, positions), which UpdateCache REQUIRES.
// Errors: InvalidArgument naming the first bad one.
absl::Status CheckSlots(const Tensor& slots, int64_t positions);

// Writes entry [R, 1, N, D] into cache [S, P, N, D]: row r at slots[r]. In
// place if the caller passes the only reference to the cache.
Tensor UpdateCache(Tensor cache, const Tensor& entry, const Tensor& slots);

}  // namespace gshard

#endif  // SERVICES_OPS_CACHE_H_
