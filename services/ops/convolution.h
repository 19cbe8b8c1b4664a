// Convolution over one or two spatial dimensions, channels last, float32.
//
//   x       [B, X1..Xk, I]   images
//   kernel  [K1..Kk, I, O]
//   y       [B, Y1..Yk, O]
//
//   y[b, p, o] = sum over k, i of x[b, index(p, k), i] * kernel[k, i, o]
//
// where index is BaseIndex of window.h for each spatial dimension, with zeros
// where it has none. There is one window per spatial dimension; its size is
// that of the kernel.
//
// Images become rows of patches, which oneDNN multiplies with the kernel: an
// element of y has the same bits wherever its patch lies in x, so a convolution
// cut into parts gives the bits of the whole one.

#ifndef SERVICES_OPS_CONVOLUTION_H_
#define SERVICES_OPS_CONVOLUTION_H_

#include "absl/types/span.h"
#include "services/ops/window.h"
#include "services/tensor/tensor.h"

namespace gshard {

// REQUIRES: one or two windows, of the sizes of `kernel`, that pass
// CheckWindow for the sizes of `x`.
Tensor Convolution(const Tensor& x, const Tensor& kernel,
                   absl::Span<const Window> windows);

// The gradient of the kernel, [K1..Kk, I, O], from x and dy [B, Y1..Yk, O]: a
// sum over images and positions, in an order fixed by the sizes. That of x is
// itself a convolution: see InputGradientWindow.
Tensor ConvolutionKernelGradient(const Tensor& x, const Tensor& dy,
                                 absl::Span<const Window> windows);

}  // namespace gshard

#endif  // SERVICES_OPS_CONVOLUTION_H_
