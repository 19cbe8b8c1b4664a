// Cases of convolutions.

#include "tests/services/graph/op_cases.h"

namespace gshard {
namespace {

using Ints = std::vector<int64_t>;

// One list per field, one entry per spatial dimension.
Attributes Windows(Ints stride, Ints pad_low, Ints pad_high, Ints base_dilation,
                   Ints window_dilation) {
  return {{"stride", std::move(stride)},
          {"pad_low", std::move(pad_low)},
          {"pad_high", std::move(pad_high)},
          {"base_dilation", std::move(base_dilation)},
          {"window_dilation", std::move(window_dilation)}};
}

OpCase Convolution(std::string name, Dims x, Dims kernel,
                   Attributes attributes) {
  return SimpleCase(
      "convolution", std::move(name),
      {RandomTensor(std::move(x), 1), RandomTensor(std::move(kernel), 2)},
      std::move(attributes), {0, 1});
}

// Random windows, determined by `seed`, over one or two dimensions.
OpCase RandomConvolution(uint64_t seed) {
  uint64_t draws = 0;
  const auto draw = [&](int64_t low, int64_t high) {
    return low +
           static_cast<int64_t>(RandomBelow(seed, draws++, high - low + 1));
  };
  const int64_t spatial = draw(1, 2);
  Dims x = {2}, kernel;
  Ints stride, pad_low, pad_high, base_dilation, window_dilation;
  for (int64_t d = 0; d < spatial; ++d) {
    x.push_back(draw(3, 6));
    kernel.push_back(draw(1, 3));
    stride.push_back(draw(1, 3));
    pad_low.push_back(draw(-1, 3));
    pad_high.push_back(draw(-1, 3));
    base_dilation.push_back(draw(1, 3));
    window_dilation.push_back(draw(1, 3));
  }
  x.push_back(2);
  kernel.push_back(2);
  kernel.push_back(3);
  return Convolution(
      absl::StrCat("drawn ", seed), x, kernel,
      Windows(stride, pad_low, pad_high, base_dilation, window_dilation));
}

OpCase KernelGradient(std::string name, Dims x, Dims dy, Ints kernel,
                      Attributes attributes) {
  attributes["kernel"] = std::move(kernel);
  return SimpleCase(
      "convolution_kernel_gradient", std::move(name),
      {RandomTensor(std::move(x), 1), RandomTensor(std::move(dy), 2)},
      std::move(attributes), {0, 1});
}

}  // namespace

std::vector<OpCase> ConvolutionCases() {
  const Attributes plain = Windows({1}, {0}, {0}, {1}, {1});
  const Attributes same = Windows({1}, {1}, {1}, {1}, {1});
  std::vector<OpCase> cases = {
      Convolution("of one dimension", {2, 7, 3}, {3, 3, 5}, same),
      Convolution("of two dimensions", {1, 5, 4, 2}, {3, 2, 2, 3},
                  Windows({2, 1}, {1, 0}, {1, 1}, {1, 1}, {1, 2})),
      Convolution("between zeros", {1, 4, 2}, {3, 2, 2},
                  Windows({1}, {2}, {1}, {3}, {1})),
      Convolution("of a part", {1, 7, 2}, {2, 2, 2},
                  Windows({2}, {-2}, {-1}, {1}, {1})),
      Convolution("of every third", {1, 8, 2}, {1, 2, 2},
                  Windows({3}, {0}, {0}, {1}, {1})),
      Convolution("of no images", {0, 5, 2}, {3, 2, 3}, same),
      Convolution("of no positions", {2, 0, 2}, {1, 2, 3}, plain),
      Convolution("of padding alone", {2, 0, 2}, {2, 2, 3}, same),
      Convolution("of too few positions", {2, 2, 2}, {3, 2, 3}, plain),
      Convolution("of no channels", {2, 4, 0}, {3, 0, 3}, same),
      Convolution("to no channels", {2, 4, 3}, {3, 3, 0}, same),
      KernelGradient("of one dimension", {2, 7, 3}, {2, 4, 5}, {3},
                     Windows({2}, {1}, {1}, {1}, {1})),
      KernelGradient("of two dimensions", {1, 5, 4, 2}, {1, 3, 3, 3}, {3, 2},
                     Windows({2, 1}, {1, 0}, {1, 1}, {1, 1}, {1, 2})),
      KernelGradient("between zeros", {2, 3, 2}, {2, 7, 1}, {2},
                     Windows({1}, {1}, {1}, {3}, {2})),
      KernelGradient("of no images", {0, 5, 2}, {0, 5, 3}, {3}, same),
      KernelGradient("of no positions", {2, 2, 2}, {2, 0, 3}, {3}, plain),
  };
  cases[0].symbolic = {0};
  cases[11].symbolic = {0, 1};
  for (uint64_t seed = 0; seed < 24; ++seed) {
    cases.push_back(RandomConvolution(seed));
  }
  return cases;
}

}  // namespace gshard
