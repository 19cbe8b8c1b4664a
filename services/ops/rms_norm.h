// RMS norm over the last dimension (Zhang, Sennrich, 2019), float32:
// y = x * inverse_rms * scale with inverse_rms = 1 / sqrt(mean(x^2) + epsilon).
//
//   M  size of the last dimension; the others together are the rows

#ifndef SERVICES_OPS_RMS_NORM_H_
#define SERVICES_OPS_RMS_NORM_H_

#include "services/tensor/tensor.h"

namespace gshard {

struct RmsNormResult {
  Tensor y;            // as x
  Tensor inverse_rms;  // x without its last dimension; the gradient needs it
};

// x [..., M], scale [M].
RmsNormResult RmsNorm(Tensor x, const Tensor& scale, float epsilon);

struct RmsNormGradients {
  Tensor dx;      // as x
  Tensor dscale;  // [M]
};

RmsNormGradients RmsNormGradient(const Tensor& x, const Tensor& scale,
                                 const Tensor& inverse_rms, Tensor dy);

}  // namespace gshard

#endif  // SERVICES_OPS_RMS_NORM_H_
