// Halo exchange along one dimension: which neighbours' elements a partition
// needs for its part of a windowed operator, and what it computes locally
// (GShard, arXiv 2006.16668, sections 3.3.3 and A.4; formulas as in XLA's
// ReshardAsWindowedInput).
//
// A dimension of `base` elements is split over n partitions, base_shard each;
// the last ones hold arbitrary padding. Partition i computes the results [i *
// result_shard, (i + 1) * result_shard) of a window that slides over the
// dimension. All partitions run one program, so whatever differs between them
// is a formula in i, and all sizes are the maximum over partitions. On each
// partition, in this order:
//
//   1. mask     own elements from index own_valid(i) on become zeros
//               (mask_tail), where `masks`.
//   2. exchange elements come from neighbours: the last ones of the partitions
//               on the left, `fetch_left` in all, and the first ones of those
//               on the right, `fetch_right`. One step per neighbour that a halo
//               reaches, left_hops and right_hops. Where there is no
//               neighbour, zeros take their place.
//   3. concat   zeros_left zeros, the left halo, the own elements, the right
//               halo, zeros_right zeros.
//   4. slice    slice_size elements of that from slice_start(i) on
//               (dynamic_slice).
//   5. compute  the operator with the window `local`; it gives local_count
//               results. What the shifts do, see DilationCase.
//
// Results of a partition beyond the `result_count` of the whole are padding
// again.
//
// The gradient of a convolution's kernel is computed from the same slices and
// the own part of the results' gradients, masked like step 1, by
// convolution_kernel_gradient with the window `local`, and summed over
// partitions. kShiftResults: the part is first placed at shift(i) of
// local_count zeros. kShiftWindow: the kernel's elements are then those of the
// grown window from shift(i) on, window_dilation apart.
//
// The same plan serves other operators whose parts move: slice, pad, reverse
// and reshape, as windows of one element (below). A pad computes locally with
// the padding local.pad_low and local.pad_high and interior padding base
// dilation - 1. If its value is not zero, the slice has that value before
// valid_begin(i) and from valid_end(i) on.
//
// Pure functions; any thread.

#ifndef SERVICES_PARTITION_HALO_H_
#define SERVICES_PARTITION_HALO_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "services/ops/window.h"

namespace gshard {

// floor((multiplier * i + offset) / divisor) on partition i. Monotonic in i, so
// its extremes are those of the first and the last partition.
struct LinearForm {
  int64_t multiplier = 0;
  int64_t offset = 0;
  int64_t divisor = 1;  // positive

  int64_t At(int64_t partition) const;
  bool operator==(const LinearForm& other) const = default;
};

// (multiplier * i + offset) mod divisor, in [0, divisor), minus `least`.
struct RemainderForm {
  int64_t multiplier = 0;
  int64_t offset = 0;
  int64_t divisor = 1;
  int64_t least = 0;

  int64_t At(int64_t partition) const;
  bool operator==(const RemainderForm& other) const = default;
};

// With base dilation, a partition's first window may begin at an element or at
// a zero between elements.
enum class DilationCase {
  // The same on all partitions: nothing shifts. Always without base dilation.
  kAligned,
  // Stride 1: every partition computes max_shift results too many and keeps
  // result_shard of them from shift(i) on (dynamic_slice).
  kShiftResults,
  // Otherwise the window grows by max_shift and holds the given one from
  // shift(i) on, between zeros. It is dilated first, so its own dilation
  // becomes 1: pad it with max_shift zeros on both sides and window_dilation -
  // 1 in between, and take local.size elements from max_shift - shift(i) on
  // (dynamic_slice). These zeros multiply infinities and NaN of the base: such
  // inputs make more results NaN than without partitions.
  kShiftWindow,
};

struct HaloRequest {
  int64_t base = 0;
  Window window = {};
  int64_t parts = 1;
  // Elements per partition; 0 means the minimum, ceil(size / parts).
  int64_t base_shard = 0;
  int64_t result_shard = 0;
};

struct HaloPlan {
  int64_t base_shard = 0;
  int64_t result_count = 0;
  int64_t result_shard = 0;

  // The windows of partition i cover elements [start(i), limit(i)) of the whole
  // dimension; negative ones and those from `base` on are padding of the
  // operator.
  LinearForm start;
  LinearForm limit;

  // How many of them are left and right of the own elements; negative if not
  // even all of those are needed.
  LinearForm left_halo;
  LinearForm right_halo;
  // The maximum over partitions, at least 0.
  int64_t left = 0;
  int64_t right = 0;

  // Step 1.
  LinearForm own_valid;
  bool masks = false;

  // Step 2. At most what all other partitions have.
  int64_t fetch_left = 0;
  int64_t fetch_right = 0;
  int64_t left_hops = 0;
  int64_t right_hops = 0;

  // Step 3.
  int64_t zeros_left = 0;
  int64_t zeros_right = 0;

  // Step 4. Element t of the slice is element start(i) + t of the dimension.
  LinearForm slice_start;
  int64_t slice_size = 0;
  // Elements of the slice before valid_begin(i) and from valid_end(i) on are
  // outside the dimension; either may be negative or beyond slice_size.
  LinearForm valid_begin;
  LinearForm valid_end;

  // Step 5.
  DilationCase dilation_case = DilationCase::kAligned;
  Window local;
  int64_t local_count = 0;
  RemainderForm shift;  // 0 for kAligned
  int64_t max_shift = 0;
};

// The work per partition does not grow with their number (with base dilation d,
// by at most d).
//
// Errors: InvalidArgument for a window that CheckWindow refuses, more than 2^20
// parts, a dilated and padded base or window beyond 2^40, shards too small for
// all elements, or no elements or results to compute.
absl::StatusOr<HaloPlan> PlanHalo(const HaloRequest& request);

// Elements begin, begin + stride, ... before `end`.
HaloRequest SliceHalo(int64_t base, int64_t begin, int64_t end, int64_t stride,
                      int64_t parts);

// Elements around and between; see services/ops/padding.h.
HaloRequest PadHalo(int64_t base, int64_t low, int64_t high, int64_t interior,
                    int64_t parts);

// Reversal, after partitions have reversed their own elements, padding
// included, and swapped them between i and n - 1 - i: removes the padding, now
// in front. The plan's base is that padded dimension.
HaloRequest ReverseHalo(int64_t base, int64_t parts);

// `elements` elements in parts of base_shard that become parts of result_shard:
// a reshape whose outermost dimension is split before and after. In units of a
// common divisor of both.
HaloRequest ReshapeHalo(int64_t elements, int64_t base_shard,
                        int64_t result_shard, int64_t parts);

}  // namespace gshard

#endif  // SERVICES_PARTITION_HALO_H_
