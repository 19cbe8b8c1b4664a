#include "services/moe/dispatch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <tuple>
#include <vector>

#include "services/base/random.h"
#include "services/moe/gating.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST(PlanDispatch, SortsByExpertThenGroupThenSlot) {
  // Two groups of two tokens. Expert 1 gets three choices, expert 2 none.
  const Tensor expert = Tensor::Ints({4, 2}, {1, 0, 3, 1, 1, 3, 2, 0});
  const Tensor slot = Tensor::Ints({4, 2}, {1, 0, 0, 0, 0, 1, -1, -1});
  ASSERT_OK_AND_ASSIGN(const DispatchPlan plan,
                       PlanDispatch(expert, slot, 5, 2));
  EXPECT_THAT(plan.group_sizes.span<int32_t>(), ElementsAre(1, 3, 0, 2, 0));
  EXPECT_THAT(plan.row_source.span<int32_t>(), ElementsAre(1, 3, 0, 4, 2, 5));
}

TEST(PlanDispatch, TakesSlotsWithHoles) {
  // The paper's literal algorithm wastes slots: expert 0 may lack a slot 1.
  ASSERT_OK_AND_ASSIGN(
      const DispatchPlan plan,
      PlanDispatch(Tensor::Ints({3, 2}, {0, 1, 0, 1, 0, 1}),
                   Tensor::Ints({3, 2}, {2, -1, -1, 2, 0, 0}), 2, 0));
  EXPECT_THAT(plan.row_source.span<int32_t>(), ElementsAre(4, 0, 5, 3));
}

TEST(PlanDispatch, NoTokens) {
  const Tensor none(ElementType::kInt32, {0, 2});
  ASSERT_OK_AND_ASSIGN(const DispatchPlan plan, PlanDispatch(none, none, 3, 4));
  EXPECT_EQ(plan.row_source.dims(), (Dims{0}));
  EXPECT_THAT(plan.group_sizes.span<int32_t>(), ElementsAre(0, 0, 0));
}

TEST(PlanDispatch, RejectsExpertsAndSlotsOutOfRange) {
  const Tensor expert = Tensor::Ints({2, 2}, {0, 1, 0, 1});
  const Tensor slot = Tensor::Ints({2, 2}, {0, 0, 1, -1});
  EXPECT_THAT(PlanDispatch(expert, slot, 1, 0),
              StatusIs(kInvalid, HasSubstr("expert below 1")));
  EXPECT_THAT(PlanDispatch(expert, slot, 2, 1),
              StatusIs(kInvalid, HasSubstr("slot below 1")));
  EXPECT_THAT(PlanDispatch(Tensor::Ints({2, 2}, {0, 1, -1, 1}), slot, 2, 0),
              StatusIs(kInvalid, HasSubstr("got -1 and 1")));
  EXPECT_THAT(PlanDispatch(expert, Tensor::Ints({2}, {0, 0}), 2, 0),
              StatusIs(kInvalid, HasSubstr("slot i32[T, 2]")));
  EXPECT_THAT(PlanDispatch(Tensor::Ints({2, 1}, {0, 0}), slot, 2, 0),
              StatusIs(kInvalid, HasSubstr("expert i32[T, 2]")));
}

TEST(Combine, ATokenWithoutRowsIsZeroAndSumsRunFirstChoiceFirst) {
  const Tensor rows = Tensor::Floats({3, 2}, {1, 2, 3, 4, 5, 6});
  const Tensor row_source = Tensor::Ints({3}, {5, 0, 4});
  const Tensor weight = Tensor::Floats({3, 2}, {.5f, 9, NAN, NAN, .25f, .75f});
  ASSERT_OK_AND_ASSIGN(const Tensor y, Combine(rows, row_source, weight));
  EXPECT_THAT(y.span<float>(), ElementsAre(1.5f, 2.0f, 0.0f, 0.0f,  //
                                           2.0f, 3.0f));
}

TEST(Combine, RejectsSourcesThatRepeatOrLeadNowhere) {
  const Tensor rows = Tensor::Floats({2, 1}, {1, 2});
  const Tensor weight = Tensor::Zeros(ElementType::kFloat32, {2, 2});
  EXPECT_THAT(Combine(rows, Tensor::Ints({2}, {1, 1}), weight),
              StatusIs(kInvalid, HasSubstr("got 1 in row 1")));
  EXPECT_THAT(Combine(rows, Tensor::Ints({2}, {1, 4}), weight),
              StatusIs(kInvalid, HasSubstr("[0, 4), got 4")));
  EXPECT_THAT(Combine(rows, Tensor::Ints({2}, {1, -1}), weight),
              StatusIs(kInvalid, HasSubstr("got -1")));
  EXPECT_THAT(Combine(rows, Tensor::Ints({1}, {1}), weight),
              StatusIs(kInvalid, HasSubstr("rows [R, M]")));
  EXPECT_THAT(DispatchRows(rows, Tensor::Ints({1}, {4})),
              StatusIs(kInvalid, HasSubstr("got 4 in row 0")));
  EXPECT_THAT(DispatchRows(rows, Tensor::Ints({1}, {-1})),
              StatusIs(kInvalid, HasSubstr("got -1")));
  EXPECT_THAT(DispatchGradient(rows, Tensor::Ints({2}, {0, 4}), 2),
              StatusIs(kInvalid, HasSubstr("got 4")));
  EXPECT_THAT(CombineGradient(Tensor::Floats({2, 2}, {1, 2, 3, 4}), rows,
                              Tensor::Ints({2}, {0, 2}), weight),
              StatusIs(kInvalid, HasSubstr("dy f32[T, M]")));
}

// V4: a layer with V1's gates, where FFN_e(x) = (e + 1) x, by hand.
TEST(Combine, V4LayerEndToEnd) {
  Tensor x = Tensor::Floats({4, 4}, {.70f, .15f, .10f, .05f,  //
                                     .50f, .30f, .15f, .05f,  //
                                     .60f, .30f, .05f, .05f,  //
                                     .05f, .50f, .40f, .05f});
  for (float& v : x.span<float>()) v = std::log(v);
  const std::vector<float> uniform = {.9f, .1f, .1f, .1f};
  for (const bool literal : {true, false}) {
    SCOPED_TRACE(literal);
    ASSERT_OK_AND_ASSIGN(
        const Routing routing,
        Top2Gating(x, {}, {.literal = literal}, {.uniform = uniform}));
    ASSERT_OK_AND_ASSIGN(const DispatchPlan plan,
                         PlanDispatch(routing.expert, routing.slot, 4, 0));
    ASSERT_OK_AND_ASSIGN(Tensor rows, DispatchRows(x, plan.row_source));
    int64_t row = 0;
    for (int e = 0; e < 4; ++e) {
      for (int n = 0; n < plan.group_sizes.i32()[e]; ++n, ++row) {
        for (int i = 0; i < 4; ++i) {
          float& v = rows.f32()[row * 4 + i];
          v = static_cast<float>(e + 1) * v;
        }
      }
    }
    ASSERT_OK_AND_ASSIGN(const Tensor y,
                         Combine(rows, plan.row_source, routing.weight));
    const float coefficient[4] = {.823529f, literal ? .625f : 1.375f, 0.0f,
                                  2.444444f};
    Tensor expected = x.Clone();
    for (int i = 0; i < 16; ++i) expected.f32()[i] *= coefficient[i / 4];
    EXPECT_TRUE(TensorNear(y, expected, 1e-6f));
    EXPECT_NEAR(y.f32()[0], -.293732, 1e-6);
    EXPECT_EQ(y.f32()[8], 0.0f);
  }
}

// Dispatch by indices equals the paper's einsums with combine_weights[S, E, C],
// here written as loops, forward and backward.
TEST(Dispatch, IsThePapersEinsums) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const int64_t T = 1 + RandomBelow(seed, 0, 60);
    const int64_t E = 1 + RandomBelow(seed, 1, 12);
    const int64_t S = 1 + RandomBelow(seed, 2, 30);
    const int64_t M = 1 + RandomBelow(seed, 3, 40);
    const GatingOptions options = {.literal = RandomBelow(seed, 4, 2) == 0,
                                   .group_size = S};
    ASSERT_OK_AND_ASSIGN(const Routing routing,
                         Top2Gating(RandomTensor({T, E}, seed, 3.0f), {},
                                    options, {.key = seed}));
    ASSERT_OK_AND_ASSIGN(const DispatchPlan plan,
                         PlanDispatch(routing.expert, routing.slot, E, S));
    const Tensor x = RandomTensor({T, M}, seed + 1);
    ASSERT_OK_AND_ASSIGN(const Tensor rows, DispatchRows(x, plan.row_source));
    const int64_t R = rows.dim(0);
    // Random rows stand for the outputs of the experts.
    const Tensor out = RandomTensor({R, M}, seed + 2);
    ASSERT_OK_AND_ASSIGN(const Tensor y,
                         Combine(out, plan.row_source, routing.weight));

    // The expected order of rows: by expert, group, slot.
    std::vector<std::tuple<int, int64_t, int, int>> order;
    for (int i = 0; i < 2 * T; ++i) {
      if (routing.slot.i32()[i] < 0) continue;
      order.emplace_back(routing.expert.i32()[i], i / 2 / S,
                         routing.slot.i32()[i], i);
    }
    std::sort(order.begin(), order.end());
    ASSERT_EQ(static_cast<int64_t>(order.size()), R);

    Tensor expected_rows = Tensor::Zeros(ElementType::kFloat32, {R, M});
    Tensor expected_y = Tensor::Zeros(ElementType::kFloat32, {T, M});
    const Tensor dy = RandomTensor({T, M}, seed + 3);
    Tensor d_rows = Tensor::Zeros(ElementType::kFloat32, {R, M});
    Tensor d_weight = Tensor::Zeros(ElementType::kFloat32, {T, 2});
    Tensor dx = Tensor::Zeros(ElementType::kFloat32, {T, M});
    for (int64_t r = 0; r < R; ++r) {
      const int source = std::get<3>(order[r]);
      const int64_t t = source / 2;
      EXPECT_EQ(plan.row_source.i32()[r], source);
      const float w = routing.weight.f32()[source];
      for (int64_t i = 0; i < M; ++i) {
        expected_rows.f32()[r * M + i] = x.f32()[t * M + i];
        expected_y.f32()[t * M + i] += w * out.f32()[r * M + i];
        d_rows.f32()[r * M + i] = w * dy.f32()[t * M + i];
        d_weight.f32()[source] += dy.f32()[t * M + i] * out.f32()[r * M + i];
        dx.f32()[t * M + i] += out.f32()[r * M + i];
      }
    }
    EXPECT_TRUE(TensorEqual(rows, expected_rows));
    EXPECT_TRUE(TensorNear(y, expected_y, 1e-6f));
    ASSERT_OK_AND_ASSIGN(
        const CombineGradients d,
        CombineGradient(dy, out, plan.row_source, routing.weight));
    EXPECT_TRUE(TensorEqual(d.d_rows, d_rows));
    EXPECT_TRUE(TensorNear(d.d_weight, d_weight, 1e-5f));
    ASSERT_OK_AND_ASSIGN(const Tensor d_x,
                         DispatchGradient(out, plan.row_source, T));
    EXPECT_TRUE(TensorNear(d_x, dx, 1e-6f));
  }
}

}  // namespace
}  // namespace gshard
