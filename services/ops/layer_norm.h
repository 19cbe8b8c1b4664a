// Layer norm over the last dimension (Ba, Kiros, Hinton, 2016), float32:
// y = (x - mean) * inverse_std * scale + bias with
// inverse_std = 1 / sqrt(variance + epsilon), variance over M.
//
//   M  size of the last dimension; the others together are the rows

#ifndef SERVICES_OPS_LAYER_NORM_H_
#define SERVICES_OPS_LAYER_NORM_H_

#include "services/tensor/tensor.h"

namespace gshard {

// The gradient needs the mean and the inverse standard deviation.
struct LayerNormResult {
  Tensor y;            // as x
  Tensor mean;         // x without its last dimension
  Tensor inverse_std;  // x without its last dimension
};

// x [..., M], scale [M], bias [M].
LayerNormResult LayerNorm(Tensor x, const Tensor& scale, const Tensor& bias,
                          float epsilon);

struct LayerNormGradients {
  Tensor dx;      // as x
  Tensor dscale;  // [M]
  Tensor dbias;   // [M]
};

LayerNormGradients LayerNormGradient(const Tensor& x, const Tensor& scale,
                                     const Tensor& mean,
                                     const Tensor& inverse_std, Tensor dy);

}  // namespace gshard

#endif  // SERVICES_OPS_LAYER_NORM_H_
