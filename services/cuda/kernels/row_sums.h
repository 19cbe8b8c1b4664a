// Sums of squares along rows, in double. Each row is added in the order of
// services/train/lanes.h, so sums are bit-identical to the CPU's.

#ifndef SERVICES_CUDA_KERNELS_ROW_SUMS_H_
#define SERVICES_CUDA_KERNELS_ROW_SUMS_H_

#include <cstdint>

#include "services/cuda/kernels/block.h"
#include "services/cuda/kernels/elementwise.h"

namespace gshard::cuda {

// Independent chains of additions per row; each is computed by one thread.
inline constexpr int kSumLanes = 16;
inline constexpr int kSumRows = kElementThreads / kSumLanes;  // per block
inline constexpr int kSumSharedBytes = kElementThreads * sizeof(double);

// To sum all elements of a tensor, it is cut into rows of this width; the sums
// of the rows are then added in order.
inline constexpr int64_t kSumWidth = 4096;

// `parts` tensors of `size` elements each, cut into rows of `width` elements;
// the last row of each part holds the remainder.
struct RowsOfParts {
  int64_t parts;
  int64_t size;
  int64_t width;

  constexpr int64_t of_part() const { return (size + width - 1) / width; }
  constexpr int64_t rows() const { return parts * of_part(); }
};

// x[i]^2 as a double.
struct Square {
  const float* x;

  GSHARD_KERNEL_INLINE double operator()(int64_t, int64_t i) const {
    const double wide = x[i];
    return wide * wide;
  }
};

// out [rows]: for each row, the sum of square(row, i) over its elements. `i`
// counts the elements of all parts.
template <typename Function>
struct RowSums {
  RowsOfParts rows;
  Function square;
  double* out;
};

template <typename Function>
constexpr int64_t BlocksOf(const RowSums<Function>& s) {
  return BlocksAlong(s.rows.rows(), kSumRows);
}

template <typename Function>
GSHARD_KERNEL_INLINE double LaneSum(const RowSums<Function>& s, int64_t row,
                                    int lane) {
  const int64_t of_part = s.rows.of_part();
  const int64_t in_part = row % of_part * s.rows.width;
  const int64_t first = row / of_part * s.rows.size + in_part;
  const int64_t left = s.rows.size - in_part;
  const int64_t count = left < s.rows.width ? left : s.rows.width;
  double sum = 0.0;
  int64_t i = 0;
  for (; i + kSumLanes <= count; i += kSumLanes) {
    sum += s.square(row, first + i + lane);
  }
  // The last elements, fewer than kSumLanes. As in SumLanes(), the lower half
  // of the lanes takes the first kHalf if there are that many; the upper half
  // takes the rest, fewer than kHalf.
  constexpr int kHalf = kSumLanes / 2;
  if (lane < kHalf) {
    if (i + kHalf <= count) sum += s.square(row, first + i + lane);
    return sum;
  }
  if (i + kHalf <= count) i += kHalf;
  i += lane - kHalf;
  return i < count ? sum + s.square(row, first + i) : sum;
}

template <typename Function>
GSHARD_KERNEL_INLINE void RowSumsBlock(const RowSums<Function>& s) {
  auto* const sums = reinterpret_cast<double*>(SharedMemory());
  const int lane = ThreadIndex() % kSumLanes;
  const int64_t row = BlockIndex() * kSumRows + ThreadIndex() / kSumLanes;
  const bool exists = row < s.rows.rows();
  if (exists) sums[ThreadIndex()] = LaneSum(s, row, lane);
  Sync();
  if (!exists || lane != 0) return;
  const double* const of_row = sums + ThreadIndex();
  double pairs[kSumLanes / 2];
  GSHARD_UNROLL for (int i = 0; i < kSumLanes / 2; ++i) {
    pairs[i] = of_row[i] + of_row[i + kSumLanes / 2];
  }
  s.out[row] = ((pairs[0] + pairs[4]) + (pairs[2] + pairs[6])) +
               ((pairs[1] + pairs[5]) + (pairs[3] + pairs[7]));
}

// out [parts] = the sum of each part's rows, in their order.
struct PartSums {
  const double* rows;
  int64_t of_part;
  double* out;

  GSHARD_KERNEL_INLINE double Sum(int64_t part) const {
    double sum = 0.0;
    for (int64_t r = part * of_part; r < (part + 1) * of_part; ++r) {
      sum += rows[r];
    }
    return sum;
  }
  GSHARD_KERNEL_INLINE void operator()(int64_t part) const {
    out[part] = Sum(part);
  }
};

}  // namespace gshard::cuda

#endif  // SERVICES_CUDA_KERNELS_ROW_SUMS_H_
