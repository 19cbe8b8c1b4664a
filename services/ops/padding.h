// Padding before, after and between elements, and masking. Of any element type.

#ifndef SERVICES_OPS_PADDING_H_
#define SERVICES_OPS_PADDING_H_

#include <cstdint>

#include "absl/types/span.h"
#include "services/tensor/tensor.h"

namespace gshard {

// Padding of one dimension: `low` elements before, `high` after (negative: that
// many are cut off) and `interior` between neighbours.
struct Padding {
  int64_t low = 0;
  int64_t high = 0;
  int64_t interior = 0;

  bool operator==(const Padding&) const = default;
};

// The size after padding; negative if more is cut off than the size.
int64_t PaddedSize(int64_t size, const Padding& padding);

// REQUIRES: one padding per dimension, no padded size is negative, and `value`
// is an element of x's type (see fill.h).
Tensor Pad(const Tensor& x, absl::Span<const Padding> padding, double value);

// x with `value` at all indices of `dim` from `limit` on: everywhere if `limit`
// is negative, nowhere if it is at least the size. Overwrites x if its buffer
// is not shared.
Tensor MaskTail(Tensor x, int dim, int64_t limit, double value);

}  // namespace gshard

#endif  // SERVICES_OPS_PADDING_H_
