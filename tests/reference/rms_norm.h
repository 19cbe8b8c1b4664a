// Reference for services/ops/rms_norm.h in plain loops, with sums in double.

#ifndef TESTS_REFERENCE_RMS_NORM_H_
#define TESTS_REFERENCE_RMS_NORM_H_

#include "services/ops/rms_norm.h"

namespace gshard::reference {

RmsNormResult RmsNorm(const Tensor& x, const Tensor& scale, float epsilon);
RmsNormGradients RmsNormGradient(const Tensor& x, const Tensor& scale,
                                 const Tensor& inverse_rms, const Tensor& dy);

}  // namespace gshard::reference

#endif  // TESTS_REFERENCE_RMS_NORM_H_
