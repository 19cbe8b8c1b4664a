// Reference for services/ops/ragged_dot.h in plain loops, with sums in double.

#ifndef TESTS_REFERENCE_RAGGED_DOT_H_
#define TESTS_REFERENCE_RAGGED_DOT_H_

#include "services/ops/ragged_dot.h"

namespace gshard::reference {

Tensor RaggedDot(const Tensor& rows, const Tensor& weights,
                 const Tensor& group_sizes);
Tensor RaggedDotRowsGradient(const Tensor& dresult, const Tensor& weights,
                             const Tensor& group_sizes);
Tensor RaggedDotWeightsGradient(const Tensor& rows, const Tensor& dresult,
                                const Tensor& group_sizes);
Tensor RaggedBiasAdd(const Tensor& rows, const Tensor& bias,
                     const Tensor& group_sizes);
Tensor RaggedBiasGradient(const Tensor& dresult, const Tensor& group_sizes);

}  // namespace gshard::reference

#endif  // TESTS_REFERENCE_RAGGED_DOT_H_
