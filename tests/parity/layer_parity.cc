#include "tests/parity/layer_parity.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "services/moe/gating.h"
#include "services/moe/graph_ops.h"
#include "tests/parity/fixture.h"
#include "tests/testing/op_case.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

// A matrix in memory; swapped strides transpose it.
struct View {
  const float* data;
  int64_t row, column;
  float at(int64_t i, int64_t j) const { return data[i * row + j * column]; }
};

// c[m, n] += a[m, k] b[k, n].
void AddProduct(View a, View b, int64_t m, int64_t n, int64_t k, float* c) {
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0.0;
      for (int64_t l = 0; l < k; ++l) sum += double{a.at(i, l)} * b.at(l, j);
      c[i * n + j] += static_cast<float>(sum);
    }
  }
}

// The balance loss as fairseq computes it with padding: the mean probability
// includes padded tokens, and both shares are of S. Our loss leaves padding
// out, so the padded fixture is compared with this one instead. Returns the
// mean over groups; adds `coefficient` times its gradient.
double AddBalanceLossOverPadding(const Tensor& logits, const Routing& routing,
                                 int64_t S, double coefficient,
                                 Tensor* d_logits) {
  const int64_t T = logits.dim(0), E = logits.dim(1), G = T / S;
  const double scale = static_cast<double>(E) / static_cast<double>(S * S * G);
  double loss = 0.0;
  for (int64_t t = 0; t < T; ++t) {
    const float* x = logits.f32() + t * E;
    const int32_t* count = routing.choice_count.i32() + t / S * E;
    double sum = 0.0, mean = 0.0;
    for (int64_t e = 0; e < E; ++e) {
      sum += std::exp(x[e]);
      mean += std::exp(x[e]) * count[e];
    }
    mean /= sum;
    loss += scale * mean;
    for (int64_t e = 0; e < E; ++e) {
      d_logits->f32()[t * E + e] += static_cast<float>(
          coefficient * scale * std::exp(x[e]) / sum * (count[e] - mean));
    }
  }
  return loss;
}

// Dispatch, FFN_e(x) = relu(x w1[e] + b1[e]) w2[e] + b2[e] and combine, with
// the gradients of sum(y * dy). `feeds` has the values of all inputs.
absl::StatusOr<TensorMap> RunExperts(const TensorMap& feeds, int64_t S,
                                     Backend backend, Device* device) {
  RegisterMoeOps();
  Builder b("layer");
  std::map<std::string, ValueId> in;
  for (const auto& [name, tensor] : feeds) {
    in[name] = b.Input(name, {tensor.type(), Shape(tensor.dims().begin(),
                                                   tensor.dims().end())});
  }
  GateValues gate;
  gate.expert = in["expert"];
  gate.slot = in["slot"];
  GatingOptions options;
  options.group_size = S;
  const DispatchValues dispatched =
      DispatchTokens(b, in["x"], gate, feeds.at("w1").dim(0), options);
  const ValueId sizes = dispatched.group_sizes;
  const ValueId hidden = b.Relu(b.RaggedBiasAdd(
      b.RaggedDot(dispatched.rows, in["w1"], sizes), in["b1"], sizes));
  const ValueId y = CombineRows(
      b, b.RaggedBiasAdd(b.RaggedDot(hidden, in["w2"], sizes), in["b2"], sizes),
      dispatched.row_source, in["weight"]);
  b.Output("rows", dispatched.rows);
  b.Output("row_source", dispatched.row_source);
  b.Output("y", y);
  const std::vector<std::string> wanted = {"x",  "weight", "w1",
                                           "b1", "w2",     "b2"};
  std::vector<ValueId> values;
  for (const std::string& name : wanted) values.push_back(in[name]);
  ASSIGN_OR_RETURN(
      const std::vector<ValueId> gradients,
      AddGradients(b, b.ReduceSum(b.Multiply(y, in["dy"]), {0, 1}), values));
  for (size_t i = 0; i < wanted.size(); ++i) {
    b.Output("grad_" + wanted[i], gradients[i]);
  }
  ASSIGN_OR_RETURN(const Program program, std::move(b).Finish());
  ASSIGN_OR_RETURN(const std::vector<Tensor> outputs,
                   RunOn(program, backend, device, feeds));
  TensorMap named;
  for (size_t i = 0; i < outputs.size(); ++i) {
    named[program.outputs[i].first] = outputs[i];
  }
  return named;
}

}  // namespace

void CheckLayer(const std::string& name, Backend backend, Device* device) {
  constexpr float kTolerance = 1e-5f;
  ASSERT_OK_AND_ASSIGN(const Fixture fixture, Fixture::Read("layer_" + name));
  const auto number = [&](const char* key) {
    return static_cast<int64_t>(fixture.Number(key));
  };
  const int64_t G = number("G"), S = number("S"), M = number("M"),
                H = number("H"), E = number("E"), C = number("C"), T = G * S;
  const Tensor x = fixture.GetFloats("x", {T, M});
  const Tensor wg = fixture.GetFloats("wg", {M, E});
  const Tensor dy = fixture.GetFloats("dy", {T, M});

  ASSERT_EQ(fixture.Text("normalize"), "before");
  const GatingOptions options = {
      .second_expert = fixture.Text("policy") == "random"
                           ? SecondExpertPolicy::kRandom
                           : SecondExpertPolicy::kAll,
      .capacity = C,
      .group_size = S};
  const bool padded = fixture.Text("padded") == "true";
  Tensor valid;
  if (padded) {
    valid = fixture.Get("padding_mask").Reshaped({T}).Clone();
    for (uint8_t& v : valid.span<uint8_t>()) v = !v;
  }

  Tensor logits = Tensor::Zeros(ElementType::kFloat32, {T, E});
  AddProduct({x.f32(), M, 1}, {wg.f32(), E, 1}, T, E, M, logits.f32());
  EXPECT_TRUE(
      TensorNear(logits, fixture.GetFloats("logits", {T, E}), kTolerance));
  ASSERT_OK_AND_ASSIGN(
      const Routing routing,
      Top2Gating(logits, valid, options,
                 {.uniform = fixture.Get("rnd").span<float>()}));
  ASSERT_OK_AND_ASSIGN(const TensorMap layer,
                       RunExperts({{"x", x},
                                   {"expert", routing.expert},
                                   {"slot", routing.slot},
                                   {"weight", routing.weight},
                                   {"w1", fixture.GetFloats("w1", {E, M, H})},
                                   {"b1", fixture.GetFloats("b1", {E, H})},
                                   {"w2", fixture.GetFloats("w2", {E, H, M})},
                                   {"b2", fixture.GetFloats("b2", {E, M})},
                                   {"dy", dy}},
                                  S, backend, device));
  const Tensor &rows = layer.at("rows"), &y = layer.at("y");

  // The paper's dense tensors, rebuilt from indices.
  Tensor combine = Tensor::Zeros(ElementType::kFloat32, {G, S, E, C});
  Tensor dispatched = Tensor::Zeros(ElementType::kFloat32, {E, G, C, M});
  for (int64_t r = 0; r < rows.dim(0); ++r) {
    const int32_t source = layer.at("row_source").i32()[r];
    const int64_t e = routing.expert.i32()[source];
    const int64_t c = routing.slot.i32()[source];
    const int64_t t = source / 2, g = t / S;
    combine.f32()[(t * E + e) * C + c] = routing.weight.f32()[source];
    std::copy_n(rows.f32() + r * M, M,
                dispatched.f32() + ((e * G + g) * C + c) * M);
  }
  EXPECT_TRUE(TensorNear(combine, fixture.GetFloats("combine", {G, S, E, C}),
                         kTolerance));
  EXPECT_TRUE(TensorNear(
      dispatched, fixture.GetFloats("dispatched", {E, G, C, M}), kTolerance));
  EXPECT_TRUE(TensorNear(y, fixture.GetFloats("y", {T, M}), kTolerance));

  const double coefficient = fixture.Number("aux_coef");
  ASSERT_OK_AND_ASSIGN(
      Tensor d_logits,
      GatingGradient(logits, routing, options, layer.at("grad_weight"),
                     padded ? 0.0f : static_cast<float>(coefficient), 0.0f));
  const double balance_loss =
      padded ? AddBalanceLossOverPadding(logits, routing, S, coefficient,
                                         &d_logits)
             : routing.balance_loss.f32()[0];
  double aux = 0.0, loss = coefficient * balance_loss;
  for (int64_t g = 0; g < G; ++g) {
    aux += fixture.Get("aux").data<double>()[g] / static_cast<double>(G);
  }
  EXPECT_NEAR(balance_loss, aux, kTolerance);
  for (int64_t i = 0; i < T * M; ++i) loss += double{y.f32()[i]} * dy.f32()[i];
  EXPECT_NEAR(loss, fixture.Get("loss").data<double>()[0], kTolerance);
  Tensor d_x = layer.at("grad_x").Clone();
  AddProduct({d_logits.f32(), E, 1}, {wg.f32(), 1, E}, T, M, E, d_x.f32());
  Tensor d_wg = Tensor::Zeros(ElementType::kFloat32, {M, E});
  AddProduct({x.f32(), 1, M}, {d_logits.f32(), E, 1}, M, E, T, d_wg.f32());
  const auto expect_gradient = [&](const std::string& key, const Tensor& got) {
    EXPECT_TRUE(TensorNear(got, fixture.GetFloats(key, got.dims()), kTolerance))
        << key;
  };
  expect_gradient("grad_x", d_x);
  expect_gradient("grad_wg", d_wg);
  for (const char* key : {"grad_w1", "grad_b1", "grad_w2", "grad_b2"}) {
    expect_gradient(key, layer.at(key));
  }
}

}  // namespace gshard
