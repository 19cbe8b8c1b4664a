#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "services/base/random.h"
#include "services/moe/gating.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

// The loss in float64, with experts, slots and counts held fixed.
double Loss(const std::vector<double>& logits, int64_t E,
            const Routing& routing, const GatingOptions& options,
            const Tensor& d_weight, double d_balance, double d_z) {
  const int64_t T = static_cast<int64_t>(logits.size()) / E;
  const int64_t S = options.group_size > 0 ? options.group_size : T;
  double loss = 0.0, balance = 0.0, z = 0.0;
  int64_t groups = 0, tokens = 0;
  for (int64_t begin = 0; begin < T; begin += S) {
    std::vector<double> m(E, 0.0);
    double n = 0.0, choices = 0.0;
    for (int64_t t = begin; t < std::min(T, begin + S); ++t) {
      const int32_t* expert = routing.expert.i32() + 2 * t;
      const int32_t* slot = routing.slot.i32() + 2 * t;
      if (expert[0] < 0) continue;
      std::vector<double> p(E);
      double sum = 0.0;
      for (int64_t e = 0; e < E; ++e) sum += p[e] = std::exp(logits[t * E + e]);
      for (int64_t e = 0; e < E; ++e) m[e] += p[e] /= sum;
      z += std::log(sum) * std::log(sum);
      n += 1;
      double g[2] = {p[expert[0]], expert[1] < 0 ? 0.0 : p[expert[1]]};
      double total = 1.0;
      if (options.normalize == Normalize::kBeforeCapacity) total = g[0] + g[1];
      if (options.normalize == Normalize::kAfterCapacity) {
        total = (slot[0] >= 0 ? g[0] : 0.0) + (slot[1] >= 0 ? g[1] : 0.0);
      }
      for (int k = 0; k < 2; ++k) {
        if (slot[k] >= 0) loss += d_weight.f32()[2 * t + k] * g[k] / total;
      }
    }
    const int32_t* count = routing.choice_count.i32() + begin / S * E;
    for (int64_t e = 0; e < E; ++e) choices += count[e];
    if (n == 0) continue;
    for (int64_t e = 0; e < E; ++e) {
      balance += static_cast<double>(E) * count[e] / choices * m[e] / n;
    }
    ++groups;
    tokens += static_cast<int64_t>(n);
  }
  if (tokens == 0) return loss;
  return loss + d_balance * balance / static_cast<double>(groups) +
         d_z * z / static_cast<double>(tokens);
}

TEST(GatingGradient, MatchesFiniteDifferences) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const auto below = [&](uint64_t i, uint64_t n) {
      return RandomBelow(seed, i, n);
    };
    const int64_t T = 1 + below(0, 20), E = 1 + below(1, 40);
    const GatingOptions options = {
        .second_expert = static_cast<SecondExpertPolicy>(below(2, 3)),
        .normalize = static_cast<Normalize>(seed % 3),
        .capacity_factor = 0.5,
        .group_size = static_cast<int64_t>(below(3, 8)),
        .balance_both_choices = below(4, 2) == 0};
    const Tensor logits = RandomTensor({T, E}, seed, 2.0f);
    Tensor valid(ElementType::kInt32, {T});
    for (int64_t t = 0; t < T; ++t) valid.i32()[t] = below(10 + t, 5) != 0;
    const Tensor d_weight = RandomTensor({T, 2}, seed + 1000);
    const float d_balance = 0.7f, d_z = 0.3f;

    ASSERT_OK_AND_ASSIGN(const Routing routing,
                         Top2Gating(logits, valid, options, {.key = seed}));
    ASSERT_OK_AND_ASSIGN(
        const Tensor gradient,
        GatingGradient(logits, routing, options, d_weight, d_balance, d_z));
    std::vector<double> point(logits.f32(), logits.f32() + logits.size());
    for (int64_t i = 0; i < logits.size(); ++i) {
      constexpr double kStep = 1e-5;
      const auto loss_at = [&](double step) {
        std::vector<double> moved = point;
        moved[i] += step;
        return Loss(moved, E, routing, options, d_weight, d_balance, d_z);
      };
      ASSERT_NEAR(gradient.f32()[i],
                  (loss_at(kStep) - loss_at(-kStep)) / (2 * kStep), 2e-6)
          << "token " << i / E << " expert " << i % E;
    }
  }
}

// Gradients worked out by hand; the paper's scale is 1 / E^2 of this one.
TEST(GatingGradient, BalanceLossOfV1) {
  Tensor logits = Tensor::Floats({4, 4}, {.70f, .15f, .10f, .05f,  //
                                          .50f, .30f, .15f, .05f,  //
                                          .60f, .30f, .05f, .05f,  //
                                          .05f, .50f, .40f, .05f});
  for (float& x : logits.span<float>()) x = std::log(x);
  ASSERT_OK_AND_ASSIGN(const Routing routing, Top2Gating(logits, {}, {}, {}));
  ASSERT_OK_AND_ASSIGN(
      const Tensor gradient,
      GatingGradient(logits, routing, {}, {}, 1.0f / 16.0f, 0.0f));
  EXPECT_TRUE(TensorNear(
      gradient,
      Tensor::Floats({4, 4},
                     {.008203125f, -.0029296875f, -.003515625f, -.0017578125f,
                      .009375f, -.00375f, -.00421875f, -.00140625f,  //
                      .0084375f, -.00515625f, -.001640625f, -.001640625f,
                      .001835938f, .002734375f, -.0040625f, -.000507813f}),
      1e-7f));
}

TEST(GatingGradient, BalanceLossSumsToZeroOverATokensLogits) {
  const Tensor logits = RandomTensor({32, 100}, 4, 3.0f);
  ASSERT_OK_AND_ASSIGN(const Routing routing, Top2Gating(logits, {}, {}, {}));
  ASSERT_OK_AND_ASSIGN(const Tensor gradient,
                       GatingGradient(logits, routing, {}, {}, 1.0f, 0.0f));
  for (int64_t t = 0; t < 32; ++t) {
    double sum = 0.0, size = 0.0;
    for (int64_t e = 0; e < 100; ++e) {
      sum += gradient.f32()[t * 100 + e];
      size += std::fabs(gradient.f32()[t * 100 + e]);
    }
    EXPECT_GT(size, 1e-6);
    EXPECT_NEAR(sum, 0.0, 1e-6 * size + 1e-8);
  }
}

TEST(GatingGradient, PaddingAndDroppedChoicesGetNothing) {
  Tensor logits = RandomTensor({4, 4}, 8);
  std::fill_n(logits.f32() + 4, 4, std::nanf(""));
  const GatingOptions options = {.capacity_factor = 0, .min_capacity = 0};
  ASSERT_OK_AND_ASSIGN(
      const Routing routing,
      Top2Gating(logits, Tensor::Ints({4}, {1, 0, 1, 1}), options, {}));
  const Tensor ones = Tensor::Floats({4, 2}, {1, 2, 3, 4, 5, 6, 7, 8});
  ASSERT_OK_AND_ASSIGN(
      const Tensor dropped,
      GatingGradient(logits, routing, options, ones, 0.0f, 0.0f));
  EXPECT_TRUE(
      TensorEqual(dropped, Tensor::Zeros(ElementType::kFloat32, {4, 4})));
  ASSERT_OK_AND_ASSIGN(
      const Tensor gradient,
      GatingGradient(logits, routing, options, ones, 1.0f, 1.0f));
  EXPECT_TRUE(TensorEqual(gradient.Rows(1, 2),
                          Tensor::Zeros(ElementType::kFloat32, {1, 4})));
}

TEST(GatingGradient, RejectsARoutingOfOtherTokens) {
  const Tensor logits = RandomTensor({4, 4}, 8);
  ASSERT_OK_AND_ASSIGN(Routing routing, Top2Gating(logits, {}, {}, {}));
  const auto code = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(
      GatingGradient(RandomTensor({5, 4}, 8), routing, {}, {}, 1.0f, 0.0f),
      StatusIs(code, HasSubstr("expert i32[5, 2], got i32[4, 2]")));
  EXPECT_THAT(
      GatingGradient(logits, routing, {}, RandomTensor({4, 3}, 1), 1.0f, 0.0f),
      StatusIs(code, HasSubstr("d_weight f32[4, 2], got f32[4, 3]")));
  EXPECT_THAT(
      GatingGradient(logits, routing, {.group_size = 2}, {}, 1.0f, 0.0f),
      StatusIs(code, HasSubstr("choice_count i32[2, 4]")));
  Routing bad = routing;
  bad.expert = routing.expert.Clone();
  bad.expert.i32()[3] = 4;
  EXPECT_THAT(GatingGradient(logits, bad, {}, {}, 1.0f, 0.0f),
              StatusIs(code, HasSubstr("below 4")));
  bad = routing;
  bad.log_sum = {};
  EXPECT_THAT(GatingGradient(logits, bad, {}, {}, 1.0f, 0.0f),
              StatusIs(code, HasSubstr("log_sum f32[4], got nothing")));
}

}  // namespace
}  // namespace gshard
