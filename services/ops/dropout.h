// Dropout (Srivastava et al., 2014) with counter-based random numbers.

#ifndef SERVICES_OPS_DROPOUT_H_
#define SERVICES_OPS_DROPOUT_H_

#include <cstdint>

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

}  // namespace gshard

#endif  // SERVICES_OPS_DROPOUT_H_
