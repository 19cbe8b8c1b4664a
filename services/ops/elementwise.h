// Elementwise arithmetic on float32. An argument whose buffer is not shared is
// overwritten, so pass std::move(x) for what is no longer needed.
//
// "Suffix": the sizes of b are the last sizes of a, so b is broadcast over a's
// leading dimensions; a scalar is a suffix of everything.

#ifndef SERVICES_OPS_ELEMENTWISE_H_
#define SERVICES_OPS_ELEMENTWISE_H_

#include "services/tensor/tensor.h"

namespace gshard {

// Whether `suffix` is a suffix of `dims`.
bool IsSuffix(const Dims& suffix, const Dims& dims);

// a + b, a - b, a * b and a / b. REQUIRES: the sizes of b are a suffix of a's.
Tensor Add(Tensor a, Tensor b);
Tensor Subtract(Tensor a, Tensor b);
Tensor Multiply(Tensor a, Tensor b);
Tensor Divide(Tensor a, Tensor b);

// factor * x.
Tensor Scale(Tensor x, float factor);

// e^x within 2 ulp, including overflow to infinity and subnormal results.
Tensor Exp(Tensor x);

// max(x, 0). Also accepts bfloat16.
Tensor Relu(Tensor x);

// dy where y > 0, else 0, with y = Relu(x). dy is float32; y is float32 or
// bfloat16.
Tensor ReluGradient(const Tensor& y, Tensor dy);

// Sums x over its leading dimensions down to the suffix `dims`, from the first
// row to the last: the gradient of a broadcast operand.
Tensor SumToSuffix(const Tensor& x, const Dims& dims);

// out[i] = a[i] + b[i] on plain arrays; `out` may be `a` or `b`.
void AddRow(const float* a, const float* b, float* out, int64_t size);

}  // namespace gshard

#endif  // SERVICES_OPS_ELEMENTWISE_H_
