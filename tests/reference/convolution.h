// Reference for services/ops/convolution.h in plain loops, for any number of
// spatial dimensions.

#ifndef TESTS_REFERENCE_CONVOLUTION_H_
#define TESTS_REFERENCE_CONVOLUTION_H_

#include "absl/types/span.h"
#include "services/ops/window.h"
#include "services/tensor/tensor.h"

namespace gshard::reference {

Tensor Convolution(const Tensor& x, const Tensor& kernel,
                   absl::Span<const Window> windows);
Tensor ConvolutionKernelGradient(const Tensor& x, const Tensor& dy,
                                 absl::Span<const Window> windows);

}  // namespace gshard::reference

#endif  // TESTS_REFERENCE_CONVOLUTION_H_
