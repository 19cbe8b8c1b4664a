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

// Dropout of rows that stand in another order: row r of x [R, H] gets the mask
// that Dropout would give row rows[r] of an [*, H] tensor, so that the mask
// goes with a row wherever it is sent. rows i32[R], not negative.
Tensor DropoutRows(Tensor x, const Tensor& rows, float rate, uint64_t key);

// Dropout of a part of a larger tensor: x begins at index `begin` of a tensor
// of sizes `whole` and gets the mask that Dropout would give it there. Both
// have one entry per dimension of x. Elements that lie beyond `whole` become
// anything.
Tensor DropoutPart(Tensor x, absl::Span<const int64_t> begin,
                   absl::Span<const int64_t> whole, float rate, uint64_t key);

// DropoutRows of columns [first_column, first_column + H) of an [R, columns]
// tensor.
Tensor DropoutRowsPart(Tensor x, const Tensor& rows, int64_t first_column,
                       int64_t columns, float rate, uint64_t key);

}  // namespace gshard

#endif  // SERVICES_OPS_DROPOUT_H_
