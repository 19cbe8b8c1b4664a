// Table rows by index: embeddings and their gradients, positions, caches.

#ifndef SERVICES_CUDA_KERNELS_LOOKUP_H_
#define SERVICES_CUDA_KERNELS_LOOKUP_H_

#include <cmath>
#include <cstdint>

#include "services/cuda/kernels/block.h"
#include "services/cuda/kernels/elementwise.h"

namespace gshard::cuda {

// out [N, width]: row n is row ids[n] of the table.
struct TableRows {
  FloatsOrRounded table;
  const int32_t* ids;  // [N]
  int64_t width;
  float* out;

  GSHARD_KERNEL_INLINE void operator()(int64_t i) const {
    out[i] = table[ids[i / width] * width + i % width];
  }
};

// A range of `count` elements of a tensor, with its offsets in the source and
// in the destination (services/graph/device.h).
struct RangeOfElements {
  int64_t from, to, count;
};

// Copies ranges of at most `most` elements each. Called for (range, i).
struct CopyElements {
  const float* x;
  const RangeOfElements* ranges;
  int64_t most;
  float* out;

  GSHARD_KERNEL_INLINE void operator()(int64_t at) const {
    const RangeOfElements range = ranges[at / most];
    const int64_t i = at % most;
    if (i < range.count) out[range.to + i] = x[range.from + i];
  }
};

// Adds up the rows of dresult that have the same id: those of the u-th id are
// at positions order[offsets[u]] to order[offsets[u + 1] - 1], added in this
// order, as on the CPU. Called for elements (u, column); rows of other ids are
// not written.
struct TableGradient {
  const float* dresult;
  const int32_t* ids;      // distinct
  const int32_t* offsets;  // one more entry than `ids`
  const int32_t* order;
  int64_t width;
  float* out;

  GSHARD_KERNEL_INLINE void operator()(int64_t i) const {
    const int64_t u = i / width, column = i % width;
    float sum = 0.0f;
    for (int32_t r = offsets[u]; r < offsets[u + 1]; ++r) {
      sum += dresult[order[r] * width + column];
    }
    out[ids[u] * width + column] = sum;
  }
};

// services/ops/positions.h. The last bits may differ, as the GPU has its own
// exp, sin and cos for doubles.
struct PositionRows {
  const int32_t* positions;  // [N]
  int64_t width;
  double step;  // of the log frequency, from one column to the next
  float* out;   // [N, width]

  GSHARD_KERNEL_INLINE void operator()(int64_t i) const {
    const int64_t half = width / 2, column = i % width;
    if (column >= 2 * half) {
      out[i] = 0.0f;
      return;
    }
    const double angle =
        positions[i / width] * exp(step * static_cast<double>(column % half));
    out[i] = static_cast<float>(column < half ? sin(angle) : cos(angle));
  }
};

// Copies row r of `entry` [R, width] to row slots[r] of a cache.
struct PutRows {
  const float* entry;
  const int32_t* slots;
  int64_t width;
  float* cache;

  GSHARD_KERNEL_INLINE void operator()(int64_t i) const {
    cache[slots[i / width] * width + i % width] = entry[i];
  }
};

}  // namespace gshard::cuda

#endif  // SERVICES_CUDA_KERNELS_LOOKUP_H_
