// RaggedDot: multiplies rows sorted by group with one matrix per group. With
// experts as groups this is the whole expert computation. The name is JAX's.
//
//   R  rows: the sum of the group sizes
//   E  groups (experts)
//   M  width of a row
//   H  width of a result row
//
// There is one matrix product per group that has rows; nothing is padded. A
// result row has the same bits whatever the other rows are.
//
// The factors of a product are both float32 or both bfloat16; the result is
// float32. Biases are float32.

#ifndef SERVICES_OPS_RAGGED_DOT_H_
#define SERVICES_OPS_RAGGED_DOT_H_

#include "absl/status/status.h"
#include "services/tensor/tensor.h"

namespace gshard {

// Whether `group_sizes` (i32[E]) are not negative and sum to `num_rows`, which
// the functions below REQUIRE.
//
// Errors: InvalidArgument naming the first bad group or the two sums.
absl::Status CheckGroupSizes(const Tensor& group_sizes, int64_t num_rows);

// rows [R, M], weights [E, M, H], group_sizes i32[E] -> [R, H]. The weights may
// be in panels (panel.h) or, for float32 rows, int8 (int8_panel.h).
Tensor RaggedDot(const Tensor& rows, const Tensor& weights,
                 const Tensor& group_sizes);

// dresult [R, H], weights [E, M, H] -> drows [R, M].
Tensor RaggedDotRowsGradient(const Tensor& dresult, const Tensor& weights,
                             const Tensor& group_sizes);

// rows [R, M], dresult [R, H] -> dweights [E, M, H], zero for empty groups.
Tensor RaggedDotWeightsGradient(const Tensor& rows, const Tensor& dresult,
                                const Tensor& group_sizes);

// Adds bias[e] to each row of group e. rows [R, H], bias [E, H] -> [R, H].
Tensor RaggedBiasAdd(Tensor rows, const Tensor& bias,
                     const Tensor& group_sizes);

// dresult [R, H] -> dbias [E, H]: sums over each group's rows, zero if it has
// none.
Tensor RaggedBiasGradient(const Tensor& dresult, const Tensor& group_sizes);

}  // namespace gshard

#endif  // SERVICES_OPS_RAGGED_DOT_H_
