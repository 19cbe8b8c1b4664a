#include <algorithm>
#include <vector>

#include "services/base/check.h"
#include "services/ops/convolution.h"
#include "services/ops/matmul.h"

namespace gshard {
namespace {

// Floats per chunk of patches: 1 MiB, so that patches are still in the level 2
// cache when they are multiplied.
constexpr int64_t kPatchFloats = int64_t{1} << 18;

// One spatial dimension.
struct Axis {
  int64_t base;
  int64_t results;
  Window window;
};

// The patches of all images as rows: row (b, p1, p2) is [K1, K2, I].
class Patches {
 public:
  Patches(const Tensor& x, absl::Span<const Window> windows)
      : x_(x.f32()), channels_(x.dim(x.rank() - 1)) {
    CHECK(windows.size() == 1 || windows.size() == 2);
    CHECK(x.rank() == static_cast<int>(windows.size()) + 2);
    for (size_t d = 0; d < windows.size(); ++d) {
      const int64_t base = x.dim(d + 1);
      // If there is only one spatial dimension, it is axes_[1].
      axes_[d + 2 - windows.size()] = {base, WindowCount(base, windows[d]),
                                       windows[d]};
    }
    rows_ = x.dim(0) * axes_[0].results * axes_[1].results;
    size_ = axes_[0].window.size * axes_[1].window.size * channels_;
    chunk_ = std::max<int64_t>(
        1, std::min(rows_, kPatchFloats / std::max<int64_t>(size_, 1)));
  }

  int64_t rows() const { return rows_; }
  int64_t size() const { return size_; }

  // Calls function(first row, number of rows, patches) for chunks of rows, in
  // order.
  template <typename Function>
  void ForEachChunk(Function function) const {
    std::vector<float> patches(chunk_ * size_);
    for (int64_t first = 0; first < rows_; first += chunk_) {
      const int64_t count = std::min(chunk_, rows_ - first);
      for (int64_t i = 0; i < count; ++i) {
        Write(first + i, patches.data() + i * size_);
      }
      function(first, count, patches.data());
    }
  }

 private:
  void Write(int64_t row, float* to) const {
    const int64_t p2 = row % axes_[1].results;
    const int64_t p1 = row / axes_[1].results % axes_[0].results;
    const int64_t b = row / axes_[1].results / axes_[0].results;
    for (int64_t k1 = 0; k1 < axes_[0].window.size; ++k1) {
      const int64_t x1 = BaseIndex(axes_[0].base, axes_[0].window, p1, k1);
      const int64_t line = (b * axes_[0].base + x1) * axes_[1].base;
      for (int64_t k2 = 0; k2 < axes_[1].window.size; ++k2) {
        const int64_t x2 = BaseIndex(axes_[1].base, axes_[1].window, p2, k2);
        if (x1 < 0 || x2 < 0) {
          std::fill_n(to, channels_, 0.0f);
        } else {
          std::copy_n(x_ + (line + x2) * channels_, channels_, to);
        }
        to += channels_;
      }
    }
  }

  const float* x_;
  int64_t channels_;
  Axis axes_[2] = {{1, 1, {}}, {1, 1, {}}};
  int64_t rows_;
  int64_t size_;   // of a row, in floats
  int64_t chunk_;  // rows per chunk
};

}  // namespace

Tensor Convolution(const Tensor& x, const Tensor& kernel,
                   absl::Span<const Window> windows) {
  CHECK(kernel.rank() == x.rank());
  const int64_t outputs = kernel.dim(kernel.rank() - 1);
  Dims dims = x.dims();
  dims.back() = outputs;
  for (size_t d = 0; d < windows.size(); ++d) {
    CHECK(windows[d].size == kernel.dim(d));
    dims[d + 1] = WindowCount(x.dim(d + 1), windows[d]);
  }
  Tensor y(ElementType::kFloat32, dims);
  if (y.size() == 0) return y;
  const Patches patches(x, windows);
  CHECK(patches.size() * outputs == kernel.size());
  patches.ForEachChunk([&](int64_t first, int64_t count, const float* rows) {
    Matmul({.m = count, .n = outputs, .k = patches.size()}, rows, kernel.f32(),
           y.f32() + first * outputs);
  });
  return y;
}

Tensor ConvolutionKernelGradient(const Tensor& x, const Tensor& dy,
                                 absl::Span<const Window> windows) {
  CHECK(dy.rank() == x.rank());
  const int64_t outputs = dy.dim(dy.rank() - 1);
  Dims dims;
  for (const Window& window : windows) dims.push_back(window.size);
  dims.push_back(x.dim(x.rank() - 1));
  dims.push_back(outputs);
  Tensor gradient = Tensor::Zeros(ElementType::kFloat32, dims);
  if (gradient.size() == 0) return gradient;
  const Patches patches(x, windows);
  CHECK(patches.rows() * outputs == dy.size());
  patches.ForEachChunk([&](int64_t first, int64_t count, const float* rows) {
    Matmul({.m = patches.size(), .n = outputs, .k = count, .transpose_a = true},
           rows, dy.f32() + first * outputs, gradient.f32(),
           /*accumulate=*/first > 0);
  });
  return gradient;
}

}  // namespace gshard
