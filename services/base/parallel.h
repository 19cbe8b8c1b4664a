// Parallel loops: the tiles of a kernel, computed on several cores.
//
// What a tile is depends on the sizes of tensors alone, never on the number of
// threads: these decide who computes a tile, and when. So results have the same
// bits on any number of cores, as long as tiles write to places of their own
// and what they have summed is added in their order.
//
// The threads are the process's: one pool for each niceness of those who come
// with work (thread_priority.h), so that the tiles of training make way for
// translations as its segments do.

#ifndef SERVICES_BASE_PARALLEL_H_
#define SERVICES_BASE_PARALLEL_H_

#include <algorithm>
#include <cstdint>

#include "absl/functional/function_ref.h"

namespace gshard {

// How many threads compute the tiles of one loop, the calling one included; 1
// until it is set. REQUIRES: threads >= 1; no loop is under way.
void SetComputeThreads(int threads);
int ComputeThreads();

// Calls body(i) for each i in [0, tiles), on the calling thread and on those of
// the pool that have nothing else to do; returns when all calls have. In a body
// further loops run on its thread. A body does not wait for anything, and
// throws nothing but std::bad_alloc, which is thrown again here.
void ParallelFor(int64_t tiles, absl::FunctionRef<void(int64_t)> body);

// Calls body(begin, end) for parts of [0, size), each of `part` but the last.
inline void ParallelForParts(int64_t size, int64_t part,
                             absl::FunctionRef<void(int64_t, int64_t)> body) {
  ParallelFor((size + part - 1) / part, [&](int64_t i) {
    body(i * part, std::min(size, (i + 1) * part));
  });
}

// The part for items that take so many simple operations each: so much work
// that handing it over does not matter. REQUIRES: operations >= 0.
constexpr int64_t kOperationsOfPart = 32768;
constexpr int64_t PartOf(int64_t operations) {
  return std::max<int64_t>(
      1, kOperationsOfPart / std::max<int64_t>(1, operations));
}

// The same for columns of a row-major matrix, that are walked down so many
// rows: whole cache lines.
constexpr int64_t kColumnsOfLine = 16;
constexpr int64_t ColumnsOf(int64_t rows) {
  return (PartOf(rows) + kColumnsOfLine - 1) / kColumnsOfLine * kColumnsOfLine;
}

}  // namespace gshard

#endif  // SERVICES_BASE_PARALLEL_H_
