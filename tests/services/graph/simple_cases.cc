// Cases of sources, elementwise operators and changes of shape.

#include "tests/services/graph/op_cases.h"

namespace gshard {
namespace {

// Random numbers in [0.5, 1.5).
Tensor Positive(Dims dims, uint64_t seed) {
  Tensor tensor = RandomTensor(std::move(dims), seed, 0.5f);
  for (float& x : tensor.span<float>()) x += 1.0f;
  return tensor;
}

}  // namespace

std::vector<OpCase> SourceCases() {
  return {
      {.op = "input",
       .name = "passes through",
       .inputs = {Tensor::Ints({2}, {4, 5})},
       .build = [](Builder&, const std::vector<ValueId>& x) { return x; }},
      {.op = "parameter",
       .name = "by name",
       .inputs = {RandomTensor({3, 2}, 1)},
       .build =
           [](Builder& b, const std::vector<ValueId>&) {
             return std::vector<ValueId>{b.Parameter("x0", {3, 2})};
           }},
      {.op = "constant",
       .name = "with a symbol",
       .inputs = {RandomTensor({3}, 2)},
       .build =
           [](Builder& b, const std::vector<ValueId>&) {
             return std::vector<ValueId>{
                 b.Constant(-2.5, {Dim::Symbol("N"), 2})};
           },
       .symbolic = {0}},
  };
}

std::vector<OpCase> ElementwiseCases() {
  const Attributes dropout = {{"rate", 0.4}, {"salt", int64_t{3}}};
  const Tensor key = KeyTensor(1234);
  std::vector<OpCase> cases = {
      SimpleCase("add", "same shape",
                 {RandomTensor({3, 5}, 1), RandomTensor({3, 5}, 2)}, {},
                 {0, 1}),
      SimpleCase("add", "last dimensions",
                 {RandomTensor({2, 3, 5}, 1), RandomTensor({3, 5}, 2)}, {},
                 {0, 1}),
      SimpleCase("add", "scalar", {RandomTensor({7}, 1), Tensor::Scalar(2.0f)},
                 {}, {0, 1}),
      SimpleCase("add", "no rows",
                 {RandomTensor({0, 5}, 1), RandomTensor({5}, 2)}, {}, {0, 1}),
      SimpleCase("multiply", "same shape",
                 {RandomTensor({3, 5}, 1), RandomTensor({3, 5}, 2)}, {},
                 {0, 1}),
      SimpleCase("multiply", "last dimension",
                 {RandomTensor({3, 5}, 1), RandomTensor({5}, 2)}, {}, {0, 1}),
      SimpleCase("multiply", "scalars",
                 {Tensor::Scalar(-1.5f), Tensor::Scalar(0.25f)}, {}, {0, 1}),
      SimpleCase("subtract", "same shape",
                 {RandomTensor({3, 5}, 1), RandomTensor({3, 5}, 2)}, {},
                 {0, 1}),
      SimpleCase("subtract", "last dimensions",
                 {RandomTensor({2, 3, 5}, 1), RandomTensor({3, 5}, 2)}, {},
                 {0, 1}),
      SimpleCase("subtract", "scalar",
                 {RandomTensor({7}, 1), Tensor::Scalar(2.0f)}, {}, {0, 1}),
      SimpleCase("divide", "same shape",
                 {RandomTensor({3, 5}, 1), Positive({3, 5}, 2)}, {}, {0, 1}),
      SimpleCase("divide", "last dimension",
                 {RandomTensor({3, 5}, 1), Positive({5}, 2)}, {}, {0, 1}),
      SimpleCase("divide", "scalar",
                 {RandomTensor({7}, 1), Tensor::Scalar(-1.5f)}, {}, {0, 1}),
      SimpleCase("divide", "no rows",
                 {RandomTensor({0, 5}, 1), Positive({5}, 2)}, {}, {0, 1}),
      SimpleCase("exp", "matrix", {RandomTensor({3, 23}, 1)}, {}, {0}),
      SimpleCase("exp", "empty", {RandomTensor({0, 3}, 1)}, {}, {0}),
      SimpleCase("scale", "vector", {RandomTensor({9}, 1)}, {{"factor", -0.3}},
                 {0}),
      SimpleCase("relu", "matrix", {AwayFromZero({4, 5}, 1)}, {}, {0}),
      SimpleCase("relu", "empty", {RandomTensor({0}, 1)}, {}, {0}),
      SimpleCase("relu_gradient", "matrix",
                 {AwayFromZero({4, 5}, 1), RandomTensor({4, 5}, 2)}, {}, {}),
      SimpleCase("dropout", "matrix", {RandomTensor({5, 7}, 1), key}, dropout,
                 {0}),
      SimpleCase("dropout", "empty", {RandomTensor({0, 7}, 1), key}, dropout,
                 {0}),
      SimpleCase("dropout_rows", "permuted",
                 {RandomTensor({3, 7}, 1), Tensor::Ints({3}, {8, 0, 5}), key},
                 dropout, {0}),
      SimpleCase("dropout_rows", "empty",
                 {RandomTensor({0, 7}, 1), Tensor::Ints({0}, {}), key}, dropout,
                 {0}),
      {.op = "multiply",
       .name = "by itself",
       .inputs = {RandomTensor({3}, 1)},
       .build =
           [](Builder& b, const std::vector<ValueId>& x) {
             return std::vector<ValueId>{b.Multiply(x[0], x[0])};
           },
       .differentiated = {0}},
  };
  // Covers a dimension that is known only at run time.
  cases[1].symbolic = {0};
  cases[6].symbolic = {};
  return cases;
}

std::vector<OpCase> ShapeCases() {
  using Ints = std::vector<int64_t>;
  const auto range = [](int64_t dim, int64_t begin, int64_t end) {
    return Attributes{{"dim", dim}, {"begin", begin}, {"end", end}};
  };
  Attributes slice_gradient = range(1, 1, 4);
  slice_gradient["size"] = int64_t{6};
  const Dim N = Dim::Symbol("N");
  std::vector<OpCase> cases = {
      SimpleCase("reshape", "static", {RandomTensor({2, 3, 4}, 1)},
                 {{"shape", Shape{6, 4}}}, {0}),
      SimpleCase("reshape", "with a symbol", {RandomTensor({5, 3, 4}, 1)},
                 {{"shape", Shape{N * 3, 4}}}, {0}),
      SimpleCase("reshape", "of integers", {Tensor::Ints({2, 2}, {1, 2, 3, 4})},
                 {{"shape", Shape{4}}}, {}),
      SimpleCase("transpose", "three", {RandomTensor({2, 3, 4}, 1)},
                 {{"permutation", Ints{2, 0, 1}}}, {0}),
      SimpleCase("transpose", "empty", {RandomTensor({2, 0, 3}, 1)},
                 {{"permutation", Ints{1, 2, 0}}}, {0}),
      SimpleCase("reduce_sum", "outer and inner", {RandomTensor({3, 4, 5}, 1)},
                 {{"dims", Ints{0, 2}}}, {0}),
      SimpleCase("reduce_sum", "all", {RandomTensor({3, 4}, 1)},
                 {{"dims", Ints{0, 1}}}, {0}),
      SimpleCase("reduce_sum", "none", {RandomTensor({3, 4}, 1)},
                 {{"dims", Ints{}}}, {0}),
      SimpleCase("reduce_sum", "no rows", {RandomTensor({0, 4}, 1)},
                 {{"dims", Ints{0}}}, {0}),
      SimpleCase("broadcast", "outer and inner", {RandomTensor({4}, 1)},
                 {{"shape", Shape{3, 4, 2}}, {"dims", Ints{0, 2}}}, {0}),
      SimpleCase("broadcast", "scalar", {Tensor::Scalar(3.0f)},
                 {{"shape", Shape{2, 2}}, {"dims", Ints{0, 1}}}, {0}),
      SimpleCase("broadcast", "with a symbol", {RandomTensor({3, 4}, 1)},
                 {{"shape", Shape{2, N, 4}}, {"dims", Ints{0}}}, {0}),
      // A GPU has strides for eight.
      SimpleCase("broadcast", "to nine dimensions", {RandomTensor({3, 2}, 1)},
                 {{"shape", Shape{2, 1, 3, 1, 1, 2, 1, 1, 2}},
                  {"dims", Ints{0, 1, 3, 4, 6, 7, 8}}},
                 {0}),
      SimpleCase("concat", "outer",
                 {RandomTensor({2, 3}, 1), RandomTensor({1, 3}, 2)},
                 {{"dim", int64_t{0}}}, {0, 1}),
      SimpleCase("concat", "inner of three",
                 {RandomTensor({2, 3}, 1), RandomTensor({2, 0}, 2),
                  RandomTensor({2, 2}, 3)},
                 {{"dim", int64_t{1}}}, {0, 1, 2}),
      SimpleCase("concat", "of one", {RandomTensor({2, 3}, 1)},
                 {{"dim", int64_t{1}}}, {0}),
      SimpleCase("slice", "inner", {RandomTensor({3, 6}, 1)}, range(1, 1, 4),
                 {0}),
      SimpleCase("slice", "outer, nothing", {RandomTensor({3, 6}, 1)},
                 range(0, 2, 2), {0}),
      SimpleCase("slice_gradient", "inner", {RandomTensor({2, 3}, 1)},
                 slice_gradient, {0}),
  };
  cases[1].symbolic = {0};
  cases[11].symbolic = {0};
  return cases;
}

}  // namespace gshard
