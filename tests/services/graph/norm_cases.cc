// Cases of norms, attention and the loss.

#include "tests/services/graph/op_cases.h"

namespace gshard {
namespace {

// A case with the first result only: the others are kept for the gradient and
// have no gradient themselves.
OpCase FirstResult(OpCase c, Attributes attributes) {
  const std::string op = c.op;
  c.build = [op, attributes](Builder& b, const std::vector<ValueId>& x) {
    return std::vector<ValueId>{b.AddNode(op, x, attributes)[0]};
  };
  return c;
}

OpCase AllResults(std::string op, std::string name, std::vector<Tensor> inputs,
                  Attributes attributes) {
  const auto build = [op, attributes](Builder& b,
                                      const std::vector<ValueId>& x) {
    return b.AddNode(op, x, attributes);
  };
  return {.op = std::move(op),
          .name = std::move(name),
          .inputs = std::move(inputs),
          .build = build};
}

}  // namespace

std::vector<OpCase> NormCases() {
  const Attributes epsilon = {{"epsilon", 1e-3}};
  const auto norm = [&](std::string op, std::string name,
                        std::vector<Tensor> inputs) {
    OpCase c{.op = std::move(op),
             .name = std::move(name),
             .inputs = std::move(inputs),
             .build = nullptr,
             .differentiated = {0, 1}};
    if (c.inputs.size() == 3) c.differentiated.push_back(2);
    return FirstResult(std::move(c), epsilon);
  };
  return {
      SimpleCase("softmax", "matrix", {RandomTensor({3, 7}, 1, 3.0f)}, {}, {0}),
      SimpleCase("softmax", "no rows", {RandomTensor({0, 7}, 1)}, {}, {0}),
      SimpleCase("softmax_gradient", "matrix",
                 {RandomTensor({3, 7}, 1), RandomTensor({3, 7}, 2)}, {}, {}),
      norm("rms_norm", "three dimensions",
           {RandomTensor({2, 3, 5}, 1), RandomTensor({5}, 2)}),
      norm("rms_norm", "no rows",
           {RandomTensor({0, 5}, 1), RandomTensor({5}, 2)}),
      AllResults("rms_norm", "all results",
                 {RandomTensor({3, 5}, 1), RandomTensor({5}, 2)}, epsilon),
      AllResults("rms_norm", "wider than a warp of a GPU",
                 {RandomTensor({2, 70}, 1), RandomTensor({70}, 2)}, epsilon),
      AllResults("rms_norm_gradient", "matrix",
                 {RandomTensor({3, 5}, 1), RandomTensor({5}, 2),
                  RandomTensor({3}, 3), RandomTensor({3, 5}, 4)},
                 {}),
      norm("layer_norm", "matrix",
           {RandomTensor({3, 5}, 1), RandomTensor({5}, 2),
            RandomTensor({5}, 3)}),
      norm("layer_norm", "no rows",
           {RandomTensor({0, 5}, 1), RandomTensor({5}, 2),
            RandomTensor({5}, 3)}),
      AllResults(
          "layer_norm_gradient", "matrix",
          {RandomTensor({3, 5}, 1), RandomTensor({5}, 2), RandomTensor({3}, 3),
           RandomTensor({3}, 4), RandomTensor({3, 5}, 5)},
          {}),
  };
}

std::vector<OpCase> AttentionCases() {
  const Tensor key = KeyTensor(99);
  const auto attributes = [](bool causal, double dropout_rate, bool keep) {
    return Attributes{{"causal", int64_t{causal}},
                      {"scale", 0.7},
                      {"dropout_rate", dropout_rate},
                      {"salt", int64_t{5}},
                      {"keep_statistics", int64_t{keep}}};
  };
  const auto attention = [&](std::string name, int64_t queries, int64_t keys,
                             std::vector<int32_t> lengths, bool causal,
                             double dropout_rate) {
    const int64_t B = lengths.size();
    OpCase c{.op = "attention",
             .name = std::move(name),
             .inputs = {RandomTensor({B, queries, 2, 3}, 1),
                        RandomTensor({B, keys, 2, 3}, 2),
                        RandomTensor({B, keys, 2, 3}, 3),
                        Tensor::Ints({B}, lengths)},
             .build = nullptr,
             .differentiated = {0, 1, 2}};
    if (dropout_rate > 0.0) c.inputs.push_back(key);
    return FirstResult(std::move(c), attributes(causal, dropout_rate, true));
  };
  const Tensor q = RandomTensor({2, 3, 2, 3}, 1);
  const Tensor k = RandomTensor({2, 4, 2, 3}, 2);
  const Tensor v = RandomTensor({2, 4, 2, 3}, 3);
  const Tensor lengths = Tensor::Ints({2}, {4, 2});
  const Tensor statistics = RandomTensor({2, 2, 3, 2}, 4);
  return {
      attention("cross, with padding", 3, 5, {5, 1, 0}, false, 0.0),
      attention("causal", 4, 4, {4, 3}, true, 0.0),
      attention("dropout", 3, 4, {4, 2}, false, 0.3),
      attention("no queries", 0, 3, {3}, false, 0.0),
      attention("no keys", 2, 0, {0}, false, 0.0),
      attention("no sentences", 2, 3, {}, true, 0.0),
      AllResults("attention", "without statistics", {q, k, v, lengths},
                 attributes(true, 0.0, false)),
      AllResults("attention_gradient", "with dropout",
                 {q, k, v, lengths, statistics, q, key},
                 attributes(false, 0.3, true)),
      SimpleCase("paged_attention", "three rows, two of a sentence",
                 {RandomTensor({3, 1, 2, 3}, 1), RandomTensor({4, 2, 2, 3}, 2),
                  RandomTensor({4, 2, 2, 3}, 3),
                  Tensor::Ints({3, 2}, {3, 1, 3, 1, 0, -7}),
                  Tensor::Ints({3}, {3, 3, 1})},
                 {{"scale", 0.5}}, {}),
      // A warp of a GPU takes several turns.
      SimpleCase(
          "paged_attention", "wide heads, many keys",
          {RandomTensor({2, 1, 2, 36}, 1), RandomTensor({6, 16, 2, 36}, 2),
           RandomTensor({6, 16, 2, 36}, 3),
           Tensor::Ints({2, 5}, {4, 1, 3, 0, 2, 1, 5, 0, -7, -7}),
           Tensor::Ints({2}, {70, 35})},
          {{"scale", 0.5}}, {}),
      SimpleCase("update_cache", "two rows",
                 {RandomTensor({2, 4, 2, 3}, 1), RandomTensor({2, 1, 2, 3}, 2),
                  Tensor::Ints({2}, {3, 4})},
                 {}, {}),
      {.op = "update_cache",
       .name = "of what somebody else has, too",
       .inputs = {RandomTensor({2, 4, 2, 3}, 1), RandomTensor({2, 1, 2, 3}, 2),
                  Tensor::Ints({2}, {3, 4})},
       .build =
           [](Builder& b, const std::vector<ValueId>& x) {
             const ValueId cache = b.Scale(x[0], 0.5);
             return std::vector<ValueId>{
                 cache, b.AddOne("update_cache", {cache, x[1], x[2]})};
           }},
  };
}

std::vector<OpCase> LossCases() {
  const auto attributes = [](double smoothing, double z_loss) {
    return Attributes{{"smoothing", smoothing}, {"z_loss", z_loss}};
  };
  const auto loss = [&](std::string name, Dims dims,
                        std::vector<int32_t> labels, double smoothing,
                        double z_loss) {
    const int64_t N = labels.size();
    return FirstResult({.op = "cross_entropy",
                        .name = std::move(name),
                        .inputs = {RandomTensor(std::move(dims), 1, 2.0f),
                                   Tensor::Ints({N}, labels)},
                        .build = nullptr,
                        .differentiated = {0}},
                       attributes(smoothing, z_loss));
  };
  return {
      loss("plain", {4, 7}, {6, 0, 3, 3}, 0.0, 0.0),
      loss("smoothed, with padding", {4, 7}, {6, -1, 3, -1}, 0.1, 0.01),
      loss("padding only", {2, 3}, {-1, -1}, 0.1, 0.01),
      loss("no rows", {0, 3}, {}, 0.1, 0.0),
      AllResults("cross_entropy", "all results",
                 {RandomTensor({3, 5}, 1), Tensor::Ints({3}, {1, -1, 4})},
                 attributes(0.1, 0.01)),
      // A warp of a GPU takes several turns.
      AllResults("cross_entropy", "large vocabulary",
                 {RandomTensor({2, 600}, 1, 3.0f), Tensor::Ints({2}, {599, 0})},
                 attributes(0.1, 0.01)),
      {.op = "cross_entropy_gradient",
       .name = "of the loss",
       .inputs = {RandomTensor({3, 5}, 1), Tensor::Ints({3}, {1, -1, 4}),
                  Tensor::Scalar(-2.0f)},
       .build =
           [attributes](Builder& b, const std::vector<ValueId>& x) {
             const ValueId log_sum_exp = b.AddNode(
                 "cross_entropy", {x[0], x[1]}, attributes(0.1, 0.01))[1];
             return std::vector<ValueId>{b.AddOne(
                 "cross_entropy_gradient", {x[0], x[1], log_sum_exp, x[2]},
                 attributes(0.1, 0.01))};
           }},
  };
}

}  // namespace gshard
