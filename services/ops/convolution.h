// Convolution over one or two spatial dimensions, channels last, float32.
//
//   x       [B, X1..Xk, I]   images
//   kernel  [K1..Kk, I, O]
//   y       [B, Y1..Yk, O]
//
//   y[b, p, o] = sum over k, i of x[b, index(p, k), i] * kernel[k, i, o]
//
// where index() is BaseIndex of window.h for each spatial dimension, and the
// term is zero where BaseIndex is -1. There is one window per spatial
// dimension; its size is that of the kernel.
//
// Computed by im2col: image patches become rows, which oneDNN multiplies with
// the kernel. An element of y has the same bits wherever its patch lies in x,
// so a convolution split into parts gives the bits of the whole one.

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
// sum over images and positions, in an order fixed by the sizes. The gradient
// of x is itself a convolution: see InputGradientWindow (window.h).
Tensor ConvolutionKernelGradient(const Tensor& x, const Tensor& dy,
                                 absl::Span<const Window> windows);

}  // namespace gshard

#endif  // SERVICES_OPS_CONVOLUTION_H_
