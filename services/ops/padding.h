// Elements put around, between and over the elements of a tensor. Of any
// element type.

#ifndef SERVICES_OPS_PADDING_H_
#define SERVICES_OPS_PADDING_H_

#include <cstdint>

#include "absl/types/span.h"
#include "services/tensor/tensor.h"

namespace gshard {

// Of one dimension: `low` elements before, `high` after (negative: so many are
// cut off) and `interior` between neighbours.
struct Padding {
  int64_t low = 0;
  int64_t high = 0;
  int64_t interior = 0;
};

// The size that `padding` makes of `size`; negative if more is cut off than
// there is.
int64_t PaddedSize(int64_t size, const Padding& padding);

// REQUIRES: one padding per dimension, no padded size is negative, and `value`
// is an element of x's type (see fill.h).
Tensor Pad(const Tensor& x, absl::Span<const Padding> padding, double value);

// x with `value` at the indices of `dim` from `limit` on, whatever was there;
// all if `limit` is negative, none if it is at least the size. Overwrites an
// argument that nobody else holds.
Tensor MaskTail(Tensor x, int dim, int64_t limit, double value);

}  // namespace gshard

#endif  // SERVICES_OPS_PADDING_H_
