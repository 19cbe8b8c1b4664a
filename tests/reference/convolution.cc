#include "tests/reference/convolution.h"

#include <vector>

#include "tests/reference/cast.h"
#include "tests/reference/coordinates.h"

namespace gshard::reference {
namespace {

// The offset of the element of x that the result at `y` multiplies with the
// kernel at `k`, or -1 for a zero of padding or dilation. Written from the
// definition, without BaseIndex.
int64_t SourceOffset(const Dims& x_dims, const Dims& y, const Dims& k,
                     absl::Span<const Window> windows) {
  Dims at = {y[0]};
  for (size_t d = 0; d < windows.size(); ++d) {
    const Window& w = windows[d];
    const int64_t padded = y[d + 1] * w.stride + k[d] * w.window_dilation;
    int64_t index = -1;
    for (int64_t i = 0; i < x_dims[d + 1]; ++i) {
      if (w.pad_low + i * w.base_dilation == padded) index = i;
    }
    if (index < 0) return -1;
    at.push_back(index);
  }
  at.push_back(k[windows.size()]);
  return Offset(at, x_dims);
}

}  // namespace

Tensor Convolution(const Tensor& x, const Tensor& kernel,
                   absl::Span<const Window> windows) {
  Dims dims = x.dims();
  dims.back() = kernel.dims().back();
  for (size_t d = 0; d < windows.size(); ++d) {
    dims[d + 1] = WindowCount(x.dim(d + 1), windows[d]);
  }
  std::vector<double> y(NumElements(dims), 0.0);
  for (size_t i = 0; i < y.size(); ++i) {
    const Dims to = Coordinates(i, dims);
    for (int64_t j = 0; j < kernel.size(); ++j) {
      const Dims k = Coordinates(j, kernel.dims());
      if (k.back() != to.back()) continue;
      const int64_t from = SourceOffset(x.dims(), to, k, windows);
      if (from < 0) continue;
      y[i] += static_cast<double>(x.f32()[from]) * kernel.f32()[j];
    }
  }
  return FromDoubles(dims, y);
}

Tensor ConvolutionKernelGradient(const Tensor& x, const Tensor& dy,
                                 absl::Span<const Window> windows) {
  Dims dims;
  for (const Window& window : windows) dims.push_back(window.size);
  dims.push_back(x.dims().back());
  dims.push_back(dy.dims().back());
  std::vector<double> gradient(NumElements(dims), 0.0);
  for (size_t j = 0; j < gradient.size(); ++j) {
    const Dims k = Coordinates(j, dims);
    for (int64_t i = 0; i < dy.size(); ++i) {
      const Dims to = Coordinates(i, dy.dims());
      if (k.back() != to.back()) continue;
      const int64_t from = SourceOffset(x.dims(), to, k, windows);
      if (from < 0) continue;
      gradient[j] += static_cast<double>(x.f32()[from]) * dy.f32()[i];
    }
  }
  return FromDoubles(dims, gradient);
}

}  // namespace gshard::reference
