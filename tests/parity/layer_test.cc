// A whole MoE layer, forward and backward, from the pure functions (gate,
// dispatch, experts in plain loops, combine), against recorded float64 numbers.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "services/moe/dispatch.h"
#include "services/moe/gating.h"
#include "tests/parity/fixture.h"
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

// FFN_e(x) = relu(x w1[e] + b1[e]) w2[e] + b2[e] over rows sorted by expert.
struct Experts {
  Tensor w1, b1, w2, b2;
  Tensor group_sizes;

  int64_t M() const { return w1.dim(1); }
  int64_t H() const { return w1.dim(2); }

  void ForEach(const std::function<void(int64_t, int64_t, int64_t)>& f) const {
    int64_t begin = 0;
    for (int64_t e = 0; e < w1.dim(0); ++e) {
      f(e, begin, group_sizes.i32()[e]);
      begin += group_sizes.i32()[e];
    }
  }

  Tensor Hidden(const Tensor& rows) const {
    Tensor hidden = Tensor::Zeros(ElementType::kFloat32, {rows.dim(0), H()});
    ForEach([&](int64_t e, int64_t begin, int64_t n) {
      float* h = hidden.f32() + begin * H();
      AddProduct({rows.f32() + begin * M(), M(), 1},
                 {w1.f32() + e * M() * H(), H(), 1}, n, H(), M(), h);
      for (int64_t i = 0; i < n * H(); ++i) {
        h[i] = std::max(h[i] + b1.f32()[e * H() + i % H()], 0.0f);
      }
    });
    return hidden;
  }

  Tensor Output(const Tensor& hidden) const {
    Tensor out = Tensor::Zeros(ElementType::kFloat32, {hidden.dim(0), M()});
    ForEach([&](int64_t e, int64_t begin, int64_t n) {
      float* y = out.f32() + begin * M();
      AddProduct({hidden.f32() + begin * H(), H(), 1},
                 {w2.f32() + e * H() * M(), M(), 1}, n, M(), H(), y);
      for (int64_t i = 0; i < n * M(); ++i) y[i] += b2.f32()[e * M() + i % M()];
    });
    return out;
  }

  struct Gradients {
    Tensor rows, w1, b1, w2, b2;
  };
  Gradients Backward(const Tensor& rows, const Tensor& hidden,
                     const Tensor& d_out) const {
    const auto zeros = [](const Tensor& like) {
      return Tensor::Zeros(ElementType::kFloat32, like.dims());
    };
    Gradients d{zeros(rows), zeros(w1), zeros(b1), zeros(w2), zeros(b2)};
    Tensor d_hidden = zeros(hidden);
    ForEach([&](int64_t e, int64_t begin, int64_t n) {
      const float* x = rows.f32() + begin * M();
      const float* h = hidden.f32() + begin * H();
      const float* dy = d_out.f32() + begin * M();
      float* dh = d_hidden.f32() + begin * H();
      AddProduct({h, 1, H()}, {dy, M(), 1}, H(), M(), n,
                 d.w2.f32() + e * H() * M());
      AddProduct({dy, M(), 1}, {w2.f32() + e * H() * M(), 1, M()}, n, H(), M(),
                 dh);
      for (int64_t i = 0; i < n * H(); ++i) {
        if (h[i] <= 0.0f) dh[i] = 0.0f;
        d.b1.f32()[e * H() + i % H()] += dh[i];
      }
      for (int64_t i = 0; i < n * M(); ++i) {
        d.b2.f32()[e * M() + i % M()] += dy[i];
      }
      AddProduct({x, 1, M()}, {dh, H(), 1}, M(), H(), n,
                 d.w1.f32() + e * M() * H());
      AddProduct({dh, H(), 1}, {w1.f32() + e * M() * H(), 1, H()}, n, M(), H(),
                 d.rows.f32() + begin * M());
    });
    return d;
  }
};

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

class LayerParity : public testing::TestWithParam<std::string> {};

TEST_P(LayerParity, ForwardAndGradients) {
  constexpr float kTolerance = 1e-5f;
  ASSERT_OK_AND_ASSIGN(const Fixture fixture,
                       Fixture::Read("layer_" + GetParam()));
  const auto number = [&](const char* name) {
    return static_cast<int64_t>(fixture.Number(name));
  };
  const int64_t G = number("G"), S = number("S"), M = number("M"),
                H = number("H"), E = number("E"), C = number("C"), T = G * S;
  const Tensor x = fixture.GetFloats("x", {T, M});
  const Tensor wg = fixture.GetFloats("wg", {M, E});
  const Tensor dy = fixture.GetFloats("dy", {T, M});
  Experts experts{.w1 = fixture.GetFloats("w1", {E, M, H}),
                  .b1 = fixture.GetFloats("b1", {E, H}),
                  .w2 = fixture.GetFloats("w2", {E, H, M}),
                  .b2 = fixture.GetFloats("b2", {E, M}),
                  .group_sizes = {}};

  ASSERT_EQ(fixture.Text("normalize"), "before");
  const GatingOptions options = {
      .second_expert = fixture.Text("policy") == "random"
                           ? SecondExpert::kRandom
                           : SecondExpert::kAll,
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
  ASSERT_OK_AND_ASSIGN(const DispatchPlan plan,
                       PlanDispatch(routing.expert, routing.slot, E, S));
  ASSERT_OK_AND_ASSIGN(const Tensor rows, DispatchRows(x, plan.row_source));
  experts.group_sizes = plan.group_sizes;
  const Tensor hidden = experts.Hidden(rows);
  const Tensor out = experts.Output(hidden);
  ASSERT_OK_AND_ASSIGN(const Tensor y,
                       Combine(out, plan.row_source, routing.weight));

  // The paper's dense tensors, rebuilt from indices.
  Tensor combine = Tensor::Zeros(ElementType::kFloat32, {G, S, E, C});
  Tensor dispatched = Tensor::Zeros(ElementType::kFloat32, {E, G, C, M});
  for (int64_t r = 0; r < rows.dim(0); ++r) {
    const int32_t source = plan.row_source.i32()[r];
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
  ASSERT_OK_AND_ASSIGN(
      const CombineGradients d_combine,
      CombineGradient(dy, out, plan.row_source, routing.weight));
  const Experts::Gradients d = experts.Backward(rows, hidden, d_combine.d_rows);
  ASSERT_OK_AND_ASSIGN(const Tensor dx,
                       DispatchGradient(d.rows, plan.row_source, T));
  const double coefficient = fixture.Number("aux_coef");
  ASSERT_OK_AND_ASSIGN(
      Tensor d_logits,
      GatingGradient(logits, routing, options, d_combine.d_weight,
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
  Tensor d_x = dx.Clone();
  AddProduct({d_logits.f32(), E, 1}, {wg.f32(), 1, E}, T, M, E, d_x.f32());
  Tensor d_wg = Tensor::Zeros(ElementType::kFloat32, {M, E});
  AddProduct({x.f32(), 1, M}, {d_logits.f32(), E, 1}, M, E, T, d_wg.f32());
  const auto expect_gradient = [&](const char* name, const Tensor& got) {
    EXPECT_TRUE(
        TensorNear(got, fixture.GetFloats(name, got.dims()), kTolerance))
        << name;
  };
  expect_gradient("grad_x", d_x);
  expect_gradient("grad_wg", d_wg);
  expect_gradient("grad_w1", d.w1);
  expect_gradient("grad_b1", d.b1);
  expect_gradient("grad_w2", d.w2);
  expect_gradient("grad_b2", d.b2);
}

INSTANTIATE_TEST_SUITE_P(Layers, LayerParity,
                         testing::Values("before", "padded_before",
                                         "random_before"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace gshard
