// Dropout (Srivastava et al., 2014) with counter-based random numbers.

#ifndef SERVICES_OPS_DROPOUT_H_
#define SERVICES_OPS_DROPOUT_H_

#include <cstdint>

#include "absl/types/span.h"
#include "services/tensor/tensor.h"

namespace gshard {

// Element i (row-major) of float32 x becomes 0 if RandomUniform(key, i) < rate,
// else x / (1 - rate). The gradient is the same function of dy.
// REQUIRES: rate in [0, 1).
Tensor Dropout(Tensor x, float rate, uint64_t key);

// Dropout for rows in a different order: row r of x [R, H] gets the mask that
// Dropout would give row rows[r] of an [*, H] tensor. So a row keeps its mask
// wherever it is sent. rows i32[R], not negative.
Tensor DropoutRows(Tensor x, const Tensor& rows, float rate, uint64_t key);

// Dropout of a part of a larger tensor: x begins at index `begin` of a tensor
// of sizes `whole` and gets the mask that Dropout would give it there. `begin`
// and `whole` have one entry per dimension of x. Elements of x beyond `whole`
// become undefined.
Tensor DropoutPart(Tensor x, absl::Span<const int64_t> begin,
                   absl::Span<const int64_t> whole, float rate, uint64_t key);

// DropoutRows where x holds columns [first_column, first_column + H) of a
// tensor with `columns` columns.
Tensor DropoutRowsPart(Tensor x, const Tensor& rows, int64_t first_column,
                       int64_t columns, float rate, uint64_t key);

}  // namespace gshard

#endif  // SERVICES_OPS_DROPOUT_H_
