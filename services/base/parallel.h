// Parallel loops: the tiles of a kernel, computed on several cores.
//
// Tiles depend only on tensor sizes, never on the number of threads, which only
// decides where and when a tile is computed. So results have the same bits on
// any number of cores, as long as tiles write to disjoint memory and their
// partial sums are added in order.
//
// The threads belong to the process: one pool per nice value of the calling
// threads (thread_priority.h), so that the tiles of training yield to
// translations as its segments do.

#ifndef SERVICES_BASE_PARALLEL_H_
#define SERVICES_BASE_PARALLEL_H_

#include <algorithm>
#include <cstdint>

#include "absl/functional/function_ref.h"

namespace gshard {

// Number of threads that compute the tiles of one loop, including the caller's;
// initially 1. REQUIRES: threads >= 1; no loop is running.
void SetComputeThreads(int threads);
int ComputeThreads();

// Calls body(i) for each i in [0, tiles), on the calling thread and on idle
// threads of the pool; returns when all calls have. Loops inside a body run on
// its thread. A body does not block, and throws nothing but std::bad_alloc,
// which is rethrown here.
void ParallelFor(int64_t tiles, absl::FunctionRef<void(int64_t)> body);

// Announces that the calling thread is about to wait for something other than a
// loop, such as another process: pool threads that spin for its next loop sleep
// at once, which frees their cores for whoever is waited for.
void RestHelpers();

// Calls body(begin, end) for chunks of [0, size) of `chunk` (the last: less).
inline void ParallelForChunks(int64_t size, int64_t chunk,
                              absl::FunctionRef<void(int64_t, int64_t)> body) {
  ParallelFor((size + chunk - 1) / chunk, [&](int64_t i) {
    body(i * chunk, std::min(size, (i + 1) * chunk));
  });
}

// The chunk size for items of `operations` simple operations each: enough work
// to make dispatch overhead negligible. REQUIRES: operations >= 0.
constexpr int64_t kOperationsPerChunk = 32768;
constexpr int64_t ChunkSize(int64_t operations) {
  return std::max<int64_t>(
      1, kOperationsPerChunk / std::max<int64_t>(1, operations));
}

// The same for columns of a row-major matrix, traversed down this many rows:
// whole cache lines.
constexpr int64_t kColumnsOfLine = 16;
constexpr int64_t ColumnsOf(int64_t rows) {
  return (ChunkSize(rows) + kColumnsOfLine - 1) / kColumnsOfLine *
         kColumnsOfLine;
}

}  // namespace gshard

#endif  // SERVICES_BASE_PARALLEL_H_
