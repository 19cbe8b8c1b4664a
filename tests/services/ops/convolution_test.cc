#include "services/ops/convolution.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/base/random.h"
#include "services/ops/reverse.h"
#include "services/ops/transpose.h"
#include "tests/reference/convolution.h"
#include "tests/services/ops/numeric_gradient.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

struct Case {
  Dims x, kernel;
  std::vector<Window> windows;

  std::string ToString() const {
    std::string text =
        absl::StrCat(DimsToString(x), " * ", DimsToString(kernel));
    for (const Window& w : windows) {
      absl::StrAppend(&text, "; stride ", w.stride, ", pad ", w.pad_low, " ",
                      w.pad_high, ", dilation ", w.base_dilation, " ",
                      w.window_dilation);
    }
    return text;
  }
};

// Every size except the window's may be 0.
Case RandomCase(uint64_t seed) {
  uint64_t draws = 0;
  const auto draw = [&](int64_t low, int64_t high) {
    return low +
           static_cast<int64_t>(RandomBelow(seed, draws++, high - low + 1));
  };
  Case c;
  c.x.push_back(draw(0, 3));
  for (int64_t d = draw(1, 2); d > 0; --d) {
    c.x.push_back(draw(0, 9));
    c.windows.push_back({.size = draw(1, 4),
                         .stride = draw(1, 4),
                         .pad_low = draw(-3, 4),
                         .pad_high = draw(-3, 4),
                         .base_dilation = draw(1, 4),
                         .window_dilation = draw(1, 3)});
    c.kernel.push_back(c.windows.back().size);
  }
  const int64_t inputs = draw(0, 3);
  c.x.push_back(inputs);
  c.kernel.push_back(inputs);
  c.kernel.push_back(draw(0, 3));
  return c;
}

// The gradient of x, composed of operators as in the graph.
Tensor InputGradient(const Tensor& dy, const Tensor& kernel, const Case& c) {
  std::vector<Window> windows;
  std::vector<int> spatial, permutation;
  for (size_t d = 0; d < c.windows.size(); ++d) {
    windows.push_back(InputGradientWindow(c.x[d + 1], c.windows[d]));
    spatial.push_back(d);
    permutation.push_back(d);
  }
  permutation.push_back(c.windows.size() + 1);
  permutation.push_back(c.windows.size());
  return Convolution(dy, Transpose(Reverse(kernel, spatial), permutation),
                     windows);
}

TEST(ConvolutionTest, EqualsReferenceAndGradientsEqualDifferences) {
  int nonempty = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    const Case c = RandomCase(seed);
    SCOPED_TRACE(absl::StrCat("seed ", seed, ": ", c.ToString()));
    for (size_t d = 0; d < c.windows.size(); ++d) {
      ASSERT_TRUE(CheckWindow(c.x[d + 1], c.windows[d]).ok());
    }
    const Tensor x = RandomTensor(c.x, 1), kernel = RandomTensor(c.kernel, 2);
    const Tensor y = Convolution(x, kernel, c.windows);
    EXPECT_TRUE(
        TensorNear(y, reference::Convolution(x, kernel, c.windows), 1e-5f));
    nonempty += y.size() > 0 ? 1 : 0;

    const Tensor dy = RandomTensor(y.dims(), 3);
    EXPECT_TRUE(TensorNear(InputGradient(dy, kernel, c),
                           NumericGradient(
                               [&](const Tensor& at) {
                                 return reference::Convolution(at, kernel,
                                                               c.windows);
                               },
                               x, dy, 0.25f),
                           1e-4f));
    const Tensor dkernel = ConvolutionKernelGradient(x, dy, c.windows);
    EXPECT_TRUE(TensorNear(
        dkernel, reference::ConvolutionKernelGradient(x, dy, c.windows),
        1e-5f));
    EXPECT_TRUE(TensorNear(dkernel,
                           NumericGradient(
                               [&](const Tensor& at) {
                                 return reference::Convolution(x, at,
                                                               c.windows);
                               },
                               kernel, dy, 0.25f),
                           1e-4f));
  }
  // Otherwise the test would show nothing.
  EXPECT_GT(nonempty, 100);
}

// Images with more patches than are computed at once match the reference.
TEST(ConvolutionTest, EqualsReferenceOnLargeImages) {
  const std::vector<Window> windows = {
      {.size = 3, .pad_low = 1, .pad_high = 1},
      {.size = 3, .stride = 2, .pad_low = 1, .pad_high = 1}};
  const Tensor x = RandomTensor({2, 24, 25, 64}, 1);
  const Tensor kernel = RandomTensor({3, 3, 64, 1}, 2, 0.1f);
  const Tensor y = Convolution(x, kernel, windows);
  EXPECT_TRUE(TensorNear(y, reference::Convolution(x, kernel, windows), 1e-5f));
  const Tensor dy = RandomTensor(y.dims(), 3, 0.1f);
  EXPECT_TRUE(TensorNear(ConvolutionKernelGradient(x, dy, windows),
                         reference::ConvolutionKernelGradient(x, dy, windows),
                         1e-5f));
}

// A part of the positions has the same bits if it is computed alone.
TEST(ConvolutionTest, PartsHaveTheBitsOfTheWhole) {
  const Tensor x = RandomTensor({3, 40, 33}, 1);
  const Tensor kernel = RandomTensor({5, 33, 20}, 2);
  const Window whole = {.size = 5, .pad_low = 2, .pad_high = 2};
  const Tensor y = Convolution(x, kernel, {whole});
  for (const int64_t begin : {0, 1, 7, 30, 39}) {
    for (const int64_t size : {1, 2, 10}) {
      if (begin + size > 40) continue;
      // Negative padding leaves only the positions of the part.
      Window part = whole;
      part.pad_low -= begin;
      part.pad_high -= 40 - begin - size;
      const Tensor some = Convolution(x, kernel, {part});
      ASSERT_EQ(some.dim(1), size);
      for (int64_t b = 0; b < 3; ++b) {
        EXPECT_TRUE(
            TensorEqual(some.Rows(b, b + 1), y.Rows(b, b + 1)
                                                 .Reshaped({40, 20})
                                                 .Rows(begin, begin + size)
                                                 .Reshaped({1, size, 20})));
      }
    }
  }
}

}  // namespace
}  // namespace gshard
