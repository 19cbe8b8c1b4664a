// Cases of contractions, lookups and ragged products.

#include "tests/services/graph/op_cases.h"

namespace gshard {

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
