// Reference for services/ops/layer_norm.h in plain loops, with sums in double.

#ifndef TESTS_REFERENCE_LAYER_NORM_H_
#define TESTS_REFERENCE_LAYER_NORM_H_

#include "services/ops/layer_norm.h"

namespace gshard::reference {

LayerNormResult LayerNorm(const Tensor& x, const Tensor& scale,
                          const Tensor& bias, float epsilon);
LayerNormGradients LayerNormGradient(const Tensor& x, const Tensor& scale,
                                     const Tensor& mean,
                                     const Tensor& inverse_std,
                                     const Tensor& dy);

}  // namespace gshard::reference

#endif  // TESTS_REFERENCE_LAYER_NORM_H_
