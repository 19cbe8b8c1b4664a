// Cases of contractions, lookups and ragged products.

#include <cmath>

#include "tests/services/graph/op_cases.h"

namespace gshard {
namespace {

// Multiples of 1/4 in [-1, 1]: exact in bfloat16, and so are steps of 1/4.
Tensor Quarters(Dims dims, uint64_t seed) {
  Tensor tensor = RandomTensor(std::move(dims), seed, 4.0f);
  for (float& x : tensor.span<float>()) x = std::round(x) / 4;
  return tensor;
}

// The operator with float operands cast to bfloat16. Gradients of its result
// are rounded as well.
OpCase LowCase(std::string op, std::vector<Tensor> inputs,
               Attributes attributes, std::vector<int> differentiated) {
  OpCase c = SimpleCase(op, "of bfloat16", std::move(inputs), attributes,
                        std::move(differentiated));
  c.build = [op, attributes](Builder& b, const std::vector<ValueId>& values) {
    std::vector<ValueId> operands;
    for (const ValueId value : values) {
      operands.push_back(b.type(value).type == ElementType::kFloat32
                             ? b.Cast(value, ElementType::kBFloat16)
                             : value);
    }
    return std::vector<ValueId>{
        b.Cast(b.AddOne(op, operands, attributes), ElementType::kFloat32)};
  };
  c.step = 0.25f;
  c.tolerance = 1e-2f;
  return c;
}

}  // namespace

std::vector<OpCase> BFloat16Cases() {
  const Tensor sizes = Tensor::Ints({4}, {0, 3, 0, 4});
  Tensor away = Quarters({4, 5}, 1);
  for (float& x : away.span<float>()) x += x < 0 ? -0.5f : 0.5f;
  OpCase cast = LowCase("relu", {away}, {}, {0});
  cast.op = "cast";
  cast.name = "there and back";
  cast.build = [](Builder& b, const std::vector<ValueId>& x) {
    const ValueId low = b.AddOne("cast", {x[0]}, {{"type", "bf16"}});
    return std::vector<ValueId>{b.AddOne("cast", {low}, {{"type", "f32"}}),
                                b.AddOne("cast", {low}, {{"type", "bf16"}})};
  };
  return {
      cast,
      LowCase("relu", {away}, {}, {0}),
      LowCase("einsum", {Quarters({2, 3, 5}, 1), Quarters({5, 4}, 2)},
              {{"equation", "blm,mh->blh"}}, {0, 1}),
      LowCase("einsum", {Quarters({3, 2, 5}, 1), Quarters({2, 4, 3}, 2)},
              {{"equation", "abc,bda->dcb"}}, {0, 1}),
      LowCase("ragged_dot",
              {Quarters({7, 3}, 1), Quarters({4, 3, 5}, 2), sizes}, {}, {0, 1}),
      LowCase("ragged_dot_rows_gradient",
              {Quarters({7, 5}, 1), Quarters({4, 3, 5}, 2), sizes}, {}, {}),
      LowCase("ragged_dot_weights_gradient",
              {Quarters({7, 3}, 1), Quarters({7, 4}, 2), sizes}, {}, {}),
      LowCase("attention",
              {Quarters({2, 3, 2, 3}, 1), Quarters({2, 4, 2, 3}, 2),
               Quarters({2, 4, 2, 3}, 3), Tensor::Ints({2}, {4, 2})},
              {{"causal", int64_t{0}},
               {"scale", 0.7},
               {"dropout_rate", 0.0},
               {"salt", int64_t{5}},
               {"keep_statistics", int64_t{0}}},
              {}),
      LowCase("embedding", {Quarters({5, 3}, 1), Tensor::Ints({3}, {0, 4, 4})},
              {}, {0}),
      LowCase("transpose", {Quarters({2, 3, 4}, 1)},
              {{"permutation", std::vector<int64_t>{2, 0, 1}}}, {0}),
  };
}

std::vector<OpCase> ContractionCases() {
  const auto einsum = [](std::string equation, Dims a, Dims b) {
    return SimpleCase(
        "einsum", equation,
        {RandomTensor(std::move(a), 1), RandomTensor(std::move(b), 2)},
        {{"equation", equation}}, {0, 1});
  };
  std::vector<OpCase> cases = {
      einsum("blm,mh->blh", {2, 3, 5}, {5, 4}),
      einsum("blm,mnd->blnd", {1, 3, 5}, {5, 2, 3}),
      einsum("blnd,ndm->blm", {2, 3, 2, 3}, {2, 3, 5}),
      einsum("nm,vm->nv", {3, 5}, {7, 5}),
      einsum("bnqd,bnkd->bnqk", {2, 2, 3, 5}, {2, 2, 4, 5}),
      einsum("a,a->", {5}, {5}),
      einsum("a,b->ab", {3}, {4}),
      einsum("tm,me->te", {0, 5}, {5, 4}),
      einsum("tm,me->te", {3, 0}, {0, 4}),
  };
  cases[0].symbolic = {0};
  return cases;
}

std::vector<OpCase> LookupCases() {
  const Tensor ids = Tensor::Ints({2, 3}, {0, 4, 4, 2, 0, 1});
  const Attributes table = {{"shape", Shape{5, 3}}};
  return {
      SimpleCase("embedding", "repeated ids", {RandomTensor({5, 3}, 1), ids},
                 {}, {0}),
      SimpleCase("embedding", "no ids",
                 {RandomTensor({5, 3}, 1), Tensor::Ints({0}, {})}, {}, {0}),
      SimpleCase("embedding_gradient", "repeated ids",
                 {RandomTensor({2, 3, 3}, 1), ids}, table, {}),
      SimpleCase("sinusoidal_positions", "odd width",
                 {Tensor::Ints({4}, {0, 1, 7, 1023})}, {{"width", int64_t{5}}},
                 {}),
  };
}

std::vector<OpCase> RaggedCases() {
  // Experts without rows first, in between and last.
  const Tensor sizes = Tensor::Ints({5}, {0, 3, 0, 4, 0});
  const Tensor none = Tensor::Ints({2}, {0, 0});
  return {
      SimpleCase("ragged_dot", "empty experts",
                 {RandomTensor({7, 3}, 1), RandomTensor({5, 3, 4}, 2), sizes},
                 {}, {0, 1}),
      SimpleCase("ragged_dot", "no rows",
                 {RandomTensor({0, 3}, 1), RandomTensor({2, 3, 4}, 2), none},
                 {}, {0, 1}),
      SimpleCase("ragged_dot_rows_gradient", "empty experts",
                 {RandomTensor({7, 4}, 1), RandomTensor({5, 3, 4}, 2), sizes},
                 {}, {}),
      SimpleCase("ragged_dot_weights_gradient", "empty experts",
                 {RandomTensor({7, 3}, 1), RandomTensor({7, 4}, 2), sizes}, {},
                 {}),
      SimpleCase("ragged_bias_add", "empty experts",
                 {RandomTensor({7, 4}, 1), RandomTensor({5, 4}, 2), sizes}, {},
                 {0, 1}),
      SimpleCase("ragged_bias_add", "no rows",
                 {RandomTensor({0, 4}, 1), RandomTensor({2, 4}, 2), none}, {},
                 {0, 1}),
      SimpleCase("ragged_bias_gradient", "empty experts",
                 {RandomTensor({7, 4}, 1), sizes}, {}, {}),
  };
}

}  // namespace gshard
