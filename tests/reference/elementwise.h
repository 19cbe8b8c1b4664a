// Reference for services/ops/elementwise.h and dropout.h in plain loops.

#ifndef TESTS_REFERENCE_ELEMENTWISE_H_
#define TESTS_REFERENCE_ELEMENTWISE_H_

#include <cstdint>

#include "services/tensor/tensor.h"

namespace gshard::reference {

Tensor Add(const Tensor& a, const Tensor& b);
Tensor Subtract(const Tensor& a, const Tensor& b);
Tensor Multiply(const Tensor& a, const Tensor& b);
Tensor Divide(const Tensor& a, const Tensor& b);
Tensor Scale(const Tensor& x, float factor);
Tensor Exp(const Tensor& x);
Tensor Relu(const Tensor& x);
Tensor ReluGradient(const Tensor& y, const Tensor& dy);
Tensor SumToSuffix(const Tensor& x, const Dims& dims);
Tensor Dropout(const Tensor& x, float rate, uint64_t key);

}  // namespace gshard::reference

#endif  // TESTS_REFERENCE_ELEMENTWISE_H_
