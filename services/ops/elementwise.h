// Elementwise arithmetic on float32. An argument that nobody else holds is
// overwritten, so pass std::move(x) for what is no longer needed.
//
// "Suffix": b's sizes are the last sizes of a, so that b is repeated over a's
// leading dimensions; a scalar is a suffix of everything.

#ifndef SERVICES_OPS_ELEMENTWISE_H_
#define SERVICES_OPS_ELEMENTWISE_H_

#include "services/tensor/tensor.h"

namespace gshard {

// Whether `suffix` are the last sizes of `dims`.
bool IsSuffix(const Dims& suffix, const Dims& dims);

// a + b, a - b, a * b and a / b. REQUIRES: b's sizes are a suffix of a's.
Tensor Add(Tensor a, Tensor b);
Tensor Subtract(Tensor a, Tensor b);
Tensor Multiply(Tensor a, Tensor b);
Tensor Divide(Tensor a, Tensor b);

// factor * x.
Tensor Scale(Tensor x, float factor);

// e^x within 2 ulp, with infinity and the smallest numbers where they belong.
Tensor Exp(Tensor x);

// max(x, 0). Of bfloat16 as well.
Tensor Relu(Tensor x);

// dy where y > 0, else 0, with y = Relu(x). dy is float32, y that or bfloat16.
Tensor ReluGradient(const Tensor& y, Tensor dy);

// Sums x over its leading dimensions down to the suffix `dims`, from the first
// row to the last: the gradient of a repeated operand.
Tensor SumToSuffix(const Tensor& x, const Dims& dims);

// out[i] = a[i] + b[i] on plain arrays; `out` may be `a` or `b`.
void AddRow(const float* a, const float* b, float* out, int64_t size);

}  // namespace gshard

#endif  // SERVICES_OPS_ELEMENTWISE_H_
