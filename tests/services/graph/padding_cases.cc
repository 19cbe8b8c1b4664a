// Cases of padding, masks, reversal, dynamic slices and maxima.

#include <limits>

#include "tests/services/graph/op_cases.h"

namespace gshard {
namespace {

using Ints = std::vector<int64_t>;

Attributes Around(Ints low, Ints high, Ints interior, double value) {
  return {{"low", std::move(low)},
          {"high", std::move(high)},
          {"interior", std::move(interior)},
          {"value", value}};
}

Attributes Tail(int64_t dim, double value) {
  return {{"dim", dim}, {"value", value}};
}

// Elements so far apart that a difference step keeps the largest one.
Tensor FarApart(Dims dims) {
  Tensor tensor(ElementType::kFloat32, std::move(dims));
  for (int64_t i = 0; i < tensor.size(); ++i) {
    tensor.f32()[i] = 0.1f * static_cast<float>(i * 7 % 29) - 1.0f;
  }
  return tensor;
}

}  // namespace

std::vector<OpCase> PaddingCases() {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const Tensor matrix = RandomTensor({3, 4}, 1);
  const Tensor two = KeyTensor(2);
  Tensor with_nan = RandomTensor({2, 3, 2}, 1);
  with_nan.f32()[5] = with_nan.f32()[10] = static_cast<float>(kNan);
  std::vector<OpCase> cases = {
      SimpleCase("pad", "around", {matrix},
                 Around({1, 0}, {2, 3}, {0, 0}, -1.5), {0}),
      SimpleCase("pad", "with a symbol", {matrix},
                 Around({0, 2}, {0, 1}, {0, 1}, 2.0), {0}),
      SimpleCase("pad", "between", {matrix}, Around({0, 0}, {0, 0}, {2, 1}, 0),
                 {0}),
      SimpleCase("pad", "cut between", {RandomTensor({5, 4}, 1)},
                 Around({-3, 1}, {-2, -4}, {1, 2}, 0.5), {0}),
      SimpleCase("pad", "cut", {matrix}, Around({-1, -1}, {0, -2}, {0, 0}, 0),
                 {0}),
      SimpleCase("pad", "cut to nothing", {matrix},
                 Around({-2, 0}, {-1, 0}, {0, 0}, 0), {0}),
      SimpleCase("pad", "all cut and filled", {matrix},
                 Around({-5, 0}, {4, 0}, {0, 0}, 3), {0}),
      SimpleCase("pad", "of nothing", {RandomTensor({0, 2}, 1)},
                 Around({1, 0}, {1, 0}, {3, 0}, 4), {0}),
      SimpleCase("pad", "scalar", {Tensor::Scalar(2.0f)}, Around({}, {}, {}, 1),
                 {0}),
      SimpleCase("pad", "of integers", {Tensor::Ints({2, 1}, {4, 5})},
                 Around({1, 1}, {0, 1}, {1, 0}, -7), {}),
      SimpleCase("mask_tail", "inner", {RandomTensor({2, 5, 3}, 1), two},
                 Tail(1, -1.0), {0}),
      SimpleCase("mask_tail", "all", {matrix, KeyTensor(-3)}, Tail(0, 0.5),
                 {0}),
      SimpleCase("mask_tail", "none", {matrix, KeyTensor(9)}, Tail(1, 0.5),
                 {0}),
      SimpleCase("mask_tail", "of nothing", {RandomTensor({0, 3}, 1), two},
                 Tail(1, 0.5), {0}),
      SimpleCase("mask_tail", "of integers",
                 {Tensor::Ints({2, 3}, {1, 2, 3, 4, 5, 6}), two}, Tail(1, -1.0),
                 {}),
      SimpleCase("mask_tail", "NaN vanishes", {with_nan, two}, Tail(1, 0.0),
                 {}),
      SimpleCase("reverse", "inner", {matrix}, {{"dims", Ints{1}}}, {0}),
      SimpleCase("reverse", "outer and inner", {RandomTensor({3, 2, 5}, 1)},
                 {{"dims", Ints{0, 2}}}, {0}),
      SimpleCase("reverse", "middle", {RandomTensor({2, 3, 2}, 1)},
                 {{"dims", Ints{1}}}, {0}),
      SimpleCase("reverse", "none", {matrix}, {{"dims", Ints{}}}, {0}),
      SimpleCase("reverse", "of nothing", {RandomTensor({2, 0}, 1)},
                 {{"dims", Ints{0, 1}}}, {0}),
      SimpleCase("reverse", "of indices", {two}, {{"dims", Ints{}}}, {}),
      SimpleCase("dynamic_slice", "inner", {matrix, two},
                 {{"dim", int64_t{1}}, {"size", int64_t{2}}}, {}),
      SimpleCase("dynamic_slice", "outer, nothing", {matrix, two},
                 {{"dim", int64_t{0}}, {"size", int64_t{0}}}, {}),
      SimpleCase("dynamic_slice", "of a symbol", {matrix, two},
                 {{"dim", int64_t{0}}, {"size", int64_t{1}}}, {}),
  };
  for (OpCase& c : cases) {
    if (c.name == "with a symbol" || c.name == "of a symbol" ||
        c.name == "outer and inner" || c.name == "all") {
      c.symbolic = {0};
    }
  }
  return cases;
}

std::vector<OpCase> ReduceMaxCases() {
  const Tensor ties = Tensor::Floats({2, 3}, {2, 5, 5, -1, -1, -1});
  std::vector<OpCase> cases = {
      SimpleCase("reduce_max", "inner", {FarApart({3, 5})}, {{"dims", Ints{1}}},
                 {0}),
      SimpleCase("reduce_max", "outer and inner", {FarApart({2, 3, 4})},
                 {{"dims", Ints{0, 2}}}, {0}),
      SimpleCase("reduce_max", "all", {FarApart({3, 5})},
                 {{"dims", Ints{0, 1}}}, {0}),
      SimpleCase("reduce_max", "none", {FarApart({3, 5})}, {{"dims", Ints{}}},
                 {0}),
      SimpleCase("reduce_max", "no columns", {RandomTensor({0, 3}, 1)},
                 {{"dims", Ints{1}}}, {0}),
      // At a tie the one-sided slopes differ; half for each is their mean.
      SimpleCase("reduce_max", "ties", {Tensor::Floats({2, 2}, {2, 2, 1, 3})},
                 {{"dims", Ints{1}}}, {0}),
      SimpleCase("reduce_max_gradient", "ties",
                 {ties, Tensor::Floats({2}, {5, -1}), RandomTensor({2}, 3)},
                 {{"dims", Ints{1}}}, {}),
  };
  cases[1].symbolic = {0};
  return cases;
}

}  // namespace gshard
