// Reference for services/ops/softmax.h in plain loops, with sums in double.

#ifndef TESTS_REFERENCE_SOFTMAX_H_
#define TESTS_REFERENCE_SOFTMAX_H_

#include "services/ops/softmax.h"

namespace gshard::reference {

Tensor Softmax(const Tensor& x);
Tensor SoftmaxGradient(const Tensor& y, const Tensor& dy);

}  // namespace gshard::reference

#endif  // TESTS_REFERENCE_SOFTMAX_H_
