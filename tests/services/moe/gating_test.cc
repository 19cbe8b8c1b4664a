#include "services/moe/gating.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "services/base/random.h"
#include "tests/reference/gating.h"
#include "tests/services/moe/kept_choices.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Logits whose softmax is `gates`, which sum to 1 in every row.
Tensor LogitsOf(Dims dims, const std::vector<float>& gates) {
  Tensor logits = Tensor::Floats(std::move(dims), gates);
  for (float& x : logits.span<float>()) x = std::log(x);
  return logits;
}

// Every vector is checked on the fast form and on the reference.
enum class Form { kFast, kReference };
class GatingVectors : public testing::TestWithParam<Form> {
 protected:
  Routing Gate(const Tensor& logits, const GatingOptions& options,
               std::vector<float> uniform = {}, const Tensor& valid = {}) {
    const GatingNoise noise = {.key = 1, .uniform = uniform};
    if (GetParam() == Form::kReference) {
      return reference::Top2Gating(logits, valid, options, noise);
    }
    const auto routing = Top2Gating(logits, valid, options, noise);
    CHECK(routing.ok());
    return *routing;
  }

  // V1: four tokens, four experts, capacity 2.
  const Tensor v1_ = LogitsOf({4, 4}, {.70f, .15f, .10f, .05f,  //
                                       .50f, .30f, .15f, .05f,  //
                                       .60f, .30f, .05f, .05f,  //
                                       .05f, .50f, .40f, .05f});
};
INSTANTIATE_TEST_SUITE_P(Forms, GatingVectors,
                         testing::Values(Form::kFast, Form::kReference),
                         [](const auto& info) {
                           return info.param == Form::kFast ? "Fast"
                                                            : "Reference";
                         });

TEST_P(GatingVectors, V1RejectedSecondChoiceUsesNoSlot) {
  const Routing routing = Gate(v1_, {}, {.9f, .1f, .1f, .1f});
  EXPECT_THAT(
      KeptChoices(routing),
      ElementsAre("s0 e0/0 0.823529", "s1 e0/1 0.625000", "s1 e1/1 0.375000",
                  "s3 e1/0 0.555556", "s3 e2/0 0.444444"));
  EXPECT_THAT(routing.expert.span<int32_t>(),
              ElementsAre(0, 1, 0, 1, 0, 1, 1, 2));
  EXPECT_NEAR(routing.balance_loss.f32()[0], 1.7, 1e-6);
  EXPECT_THAT(routing.choice_count.span<int32_t>(), ElementsAre(3, 1, 0, 0));
  EXPECT_THAT(routing.kept_count.span<int32_t>(), ElementsAre(2, 2, 1, 0));
  EXPECT_THAT(routing.overflow_count.span<int32_t>(), ElementsAre(1, 1));
}

TEST_P(GatingVectors, V1LiteralBurnsTheSlot) {
  const Routing routing = Gate(v1_, {.literal = true}, {.9f, .1f, .1f, .1f});
  EXPECT_THAT(KeptChoices(routing),
              ElementsAre("s0 e0/0 0.823529", "s1 e0/1 0.625000",
                          "s3 e1/0 0.555556", "s3 e2/0 0.444444"));
}

TEST_P(GatingVectors, V1bNothingRejected) {
  for (const bool literal : {false, true}) {
    const Routing routing = Gate(v1_, {.literal = literal}, {0, 0, 0, 0});
    EXPECT_THAT(
        KeptChoices(routing),
        ElementsAre("s0 e0/0 0.823529", "s0 e1/1 0.176471", "s1 e0/1 0.625000",
                    "s3 e1/0 0.555556", "s3 e2/0 0.444444"));
  }
}

TEST_P(GatingVectors, V2Balanced) {
  const Tensor logits = LogitsOf({4, 4}, {.4f, .3f, .2f, .1f,  //
                                          .1f, .4f, .3f, .2f,  //
                                          .2f, .1f, .4f, .3f,  //
                                          .3f, .2f, .1f, .4f});
  const Routing routing = Gate(logits, {}, {0, 0, 0, 0});
  EXPECT_THAT(
      KeptChoices(routing),
      ElementsAre("s0 e0/0 0.571429", "s0 e1/1 0.428571", "s1 e1/0 0.571429",
                  "s1 e2/1 0.428571", "s2 e2/0 0.571429", "s2 e3/1 0.428571",
                  "s3 e3/0 0.571429", "s3 e0/1 0.428571"));
  EXPECT_NEAR(routing.balance_loss.f32()[0], 1.0, 1e-6);
}

TEST_P(GatingVectors, V3CollapseAndTies) {
  std::vector<float> gates;
  for (int s = 0; s < 4; ++s)
    gates.insert(gates.end(), {.97f, .01f, .01f, .01f});
  const Routing routing =
      Gate(LogitsOf({4, 4}, gates), {}, {.5f, .5f, .5f, .5f});
  EXPECT_THAT(KeptChoices(routing),
              ElementsAre("s0 e0/0 0.989796", "s1 e0/1 0.989796"));
  EXPECT_THAT(routing.expert.span<int32_t>(),
              ElementsAre(0, 1, 0, 1, 0, 1, 0, 1));
  EXPECT_NEAR(routing.balance_loss.f32()[0], 3.88, 1e-5);
}

TEST_P(GatingVectors, BalanceLossOfVmoe) {
  const Tensor logits = LogitsOf({4, 3}, {.5f, .4f, .1f,  //
                                          .3f, .3f, .4f,  //
                                          .1f, .2f, .7f,  //
                                          .8f, .2f, .0f});
  EXPECT_NEAR(Gate(logits, {}).balance_loss.f32()[0], 1.0875, 1e-6);
}

// The gates in vmoe's golden test, [[.4, 0, .2], [.5, .1, .4], [.3, .2, .6]],
// do not sum to 1. Scaled by .9, with ten more experts for the rest, they do.
TEST_P(GatingVectors, BatchPriorityOfVmoe) {
  const float golden[3][3] = {{.4f, 0, .2f}, {.5f, .1f, .4f}, {.3f, .2f, .6f}};
  std::vector<float> gates;
  for (const auto& row : golden) {
    float rest = 1.0f;
    for (const float g : row) {
      gates.push_back(.9f * g);
      rest -= .9f * g;
    }
    gates.insert(gates.end(), 10, rest / 10);
  }
  const Tensor logits = LogitsOf({3, 13}, gates);
  GatingOptions options = {.second_expert = SecondExpertPolicy::kAll,
                           .normalize = Normalize::kNever,
                           .capacity = 2};
  EXPECT_THAT(KeptChoices(Gate(logits, options)),
              ElementsAre("s0 e0/0 0.360000", "s0 e2/1 0.180000",
                          "s1 e0/1 0.450000", "s2 e2/0 0.540000"));
  options.order = SlotOrder::kBatchPriority;
  EXPECT_THAT(KeptChoices(Gate(logits, options)),
              ElementsAre("s0 e0/1 0.360000", "s1 e0/0 0.450000",
                          "s1 e2/1 0.360000", "s2 e2/0 0.540000"));
}

class DeepSpeedVector : public GatingVectors {
 protected:
  // (token, expert, slot) of the kept choices.
  std::vector<std::vector<int>> Kept(SlotOrder order) {
    const Tensor logits = Tensor::Floats({4, 4}, {.11f, .2f, .1f, .3f,  //
                                                  .3f, .4f, .11f, .1f,  //
                                                  .11f, .1f, .6f, .5f,  //
                                                  .1f, .11f, .7f, .8f});
    const Routing routing =
        Gate(logits, {.second_expert = SecondExpertPolicy::kAll,
                      .normalize = Normalize::kAfterCapacity,
                      .order = order,
                      .capacity = 2});
    std::vector<std::vector<int>> kept;
    for (int i = 0; i < 8; ++i) {
      if (routing.slot.i32()[i] < 0) continue;
      kept.push_back({i / 2, routing.expert.i32()[i], routing.slot.i32()[i]});
    }
    std::sort(kept.begin(), kept.end());
    return kept;
  }
};
INSTANTIATE_TEST_SUITE_P(Forms, DeepSpeedVector,
                         testing::Values(Form::kFast, Form::kReference),
                         [](const auto& info) {
                           return info.param == Form::kFast ? "Fast"
                                                            : "Reference";
                         });

TEST_P(DeepSpeedVector, Probabilities) {
  EXPECT_THAT(Kept(SlotOrder::kProbability),
              ElementsAreArray<std::vector<int>>({{0, 1, 0},
                                                  {1, 0, 0},
                                                  {1, 1, 1},
                                                  {2, 2, 0},
                                                  {2, 3, 0},
                                                  {3, 2, 1},
                                                  {3, 3, 1}}));
}

TEST_P(DeepSpeedVector, Position) {
  EXPECT_THAT(Kept(SlotOrder::kPosition),
              ElementsAreArray<std::vector<int>>({{0, 1, 0},
                                                  {0, 3, 0},
                                                  {1, 0, 0},
                                                  {1, 1, 1},
                                                  {2, 2, 0},
                                                  {2, 3, 1},
                                                  {3, 2, 1}}));
}

TEST_P(DeepSpeedVector, FirstChoicesFirst) {
  EXPECT_THAT(Kept(SlotOrder::kToken),
              ElementsAreArray<std::vector<int>>({{0, 1, 1},
                                                  {0, 3, 0},
                                                  {1, 0, 0},
                                                  {1, 1, 0},
                                                  {2, 2, 0},
                                                  {3, 2, 1},
                                                  {3, 3, 1}}));
}

TEST_P(GatingVectors, OneExpertHasNoSecondChoice) {
  const Routing routing = Gate(Tensor::Floats({2, 1}, {3, -1}), {});
  EXPECT_THAT(KeptChoices(routing),
              ElementsAre("s0 e0/0 1.000000", "s1 e0/1 1.000000"));
  EXPECT_THAT(routing.expert.span<int32_t>(), ElementsAre(0, -1, 0, -1));
  EXPECT_FLOAT_EQ(routing.balance_loss.f32()[0], 1.0f);
}

TEST_P(GatingVectors, NoTokens) {
  const Routing routing = Gate(Tensor(ElementType::kFloat32, {0, 4}), {});
  EXPECT_THAT(KeptChoices(routing), IsEmpty());
  EXPECT_EQ(routing.expert.dims(), (Dims{0, 2}));
  EXPECT_EQ(routing.choice_count.dims(), (Dims{0, 4}));
  EXPECT_EQ(routing.balance_loss.f32()[0], 0.0f);
}

TEST_P(GatingVectors, EqualLogitsGoToTheLowestExperts) {
  for (const int64_t experts : {2, 5, 64, 100}) {
    const Routing routing =
        Gate(Tensor::Zeros(ElementType::kFloat32, {3, experts}),
             {.second_expert = SecondExpertPolicy::kAll});
    EXPECT_THAT(routing.expert.span<int32_t>(), ElementsAre(0, 1, 0, 1, 0, 1));
  }
}

// Slots count past 256, where a cumulative sum in bfloat16 would stop.
TEST_P(GatingVectors, CountsAllSlotsOfACrowdedExpert) {
  constexpr int64_t kTokens = 1024;
  Tensor logits = Tensor::Zeros(ElementType::kFloat32, {kTokens, 2});
  const Routing routing = Gate(logits, {.drop = false});
  for (int64_t t = 0; t < kTokens; ++t) {
    ASSERT_EQ(routing.slot.i32()[2 * t], t);
  }
}

TEST_P(GatingVectors, PaddingTakesPartInNothing) {
  Tensor logits = Tensor::Floats({4, 2}, {kNan, kNan, 1, 0, kNan, kNan, 0, 1});
  const Tensor valid = Tensor::Ints({4}, {0, 1, 0, 7});
  const Routing routing =
      Gate(logits, {.second_expert = SecondExpertPolicy::kAll, .drop = false},
           {}, valid);
  EXPECT_THAT(KeptChoices(routing),
              ElementsAre("s1 e0/0 0.731059", "s1 e1/1 0.268941",
                          "s3 e1/0 0.731059", "s3 e0/1 0.268941"));
  EXPECT_THAT(routing.expert.span<int32_t>(),
              ElementsAre(-1, -1, 0, 1, -1, -1, 1, 0));
  EXPECT_FLOAT_EQ(routing.balance_loss.f32()[0], 1.0f);
  EXPECT_NEAR(routing.z_loss.f32()[0], 1.724656, 1e-5);
}

TEST_P(GatingVectors, AGroupOfPaddingDoesNotEnterTheBalanceLoss) {
  const Tensor logits = Tensor::Floats({4, 2}, {9, 0, 9, 0, 1, 0, 1, 0});
  const float collapsed =
      Gate(logits, {.group_size = 2}, {}, Tensor::Ints({4}, {1, 1, 0, 0}))
          .balance_loss.f32()[0];
  EXPECT_NEAR(collapsed, 2.0, 1e-3);
}

// Without noise from the caller, noise is a function of the key and the token.
TEST_P(GatingVectors, KeyDecides) {
  const Tensor logits = RandomTensor({64, 8}, 5, 3.0f);
  for (const auto second :
       {SecondExpertPolicy::kRandom, SecondExpertPolicy::kSampling}) {
    const GatingOptions options = {.second_expert = second};
    const Routing routing = Gate(logits, options);
    EXPECT_TRUE(TensorEqual(routing.slot, Gate(logits, options).slot));
    ASSERT_OK_AND_ASSIGN(const Routing other,
                         Top2Gating(logits, {}, options, {.key = 2}));
    EXPECT_FALSE(TensorEqual(routing.slot, other.slot));
  }
}

// The largest of the uniform numbers makes no expert win that is far behind: of
// key 2, draw 11,330,425, which is expert 1 of token 3,776,808.
TEST(Top2Gating, NoiseIsFinite) {
  const GatingNoise noise = {.key = 2, .first_token = 3776808};
  ASSERT_EQ(RandomUniform(noise.key, 3 * noise.first_token + 1),
            1.0f - 0x1p-24f);
  const Tensor logits = Tensor::Floats({1, 3}, {0, -100, -1});
  const GatingOptions options = {.second_expert =
                                     SecondExpertPolicy::kSampling};
  ASSERT_OK_AND_ASSIGN(const Routing routing,
                       Top2Gating(logits, {}, options, noise));
  EXPECT_THAT(routing.expert.span<int32_t>(), ElementsAre(0, 2));
  EXPECT_TRUE(
      TensorEqual(reference::Top2Gating(logits, {}, options, noise).expert,
                  routing.expert));
}

TEST(Capacity, RoundsUpAndIsNeverMoreThanTheGroup) {
  EXPECT_EQ(Capacity({}, 1024, 512), 4);
  EXPECT_EQ(Capacity({}, 1000, 128), 16);  // 15.625
  EXPECT_EQ(Capacity({}, 100, 64), 4);     // 3.125
  EXPECT_EQ(Capacity({.capacity_factor = 1.25}, 64, 8), 20);
  EXPECT_EQ(Capacity({}, 4, 64), 1);
  EXPECT_EQ(Capacity({.min_capacity = 4}, 16, 64), 4);
  EXPECT_EQ(Capacity({.capacity_factor = 0, .min_capacity = 0}, 8, 4), 0);
}

TEST(Capacity, OptionsInOrderOfPrecedence) {
  EXPECT_EQ(Capacity({.capacity = 3}, 64, 8), 3);
  EXPECT_EQ(Capacity({.min_capacity = 9, .capacity = 3}, 64, 8), 3);
  EXPECT_EQ(Capacity({.drop = false, .capacity = 3}, 64, 8), 64);
  EXPECT_EQ(Capacity({.group_size = 16}, 64, 8), 4);
  EXPECT_EQ(Capacity({.capacity = 100}, 64, 8), 64);
}

// Noise depends on a token's index in the whole batch, so parts draw the same.
TEST(Top2Gating, PartsDrawWhatTheWholeDraws) {
  const int64_t part = 8;
  const Tensor logits = RandomTensor({3 * part, 6}, 3);
  for (const SecondExpertPolicy second :
       {SecondExpertPolicy::kRandom, SecondExpertPolicy::kSampling}) {
    const GatingOptions options = {.second_expert = second, .group_size = 4};
    ASSERT_OK_AND_ASSIGN(const Routing whole,
                         Top2Gating(logits, {}, options, {.key = 5}));
    for (int64_t begin = 0; begin < 3 * part; begin += part) {
      const Tensor rows = logits.Rows(begin, begin + part);
      const GatingNoise noise = {.key = 5, .first_token = begin};
      ASSERT_OK_AND_ASSIGN(const Routing routing,
                           Top2Gating(rows, {}, options, noise));
      for (const Tensor& slot :
           {routing.slot,
            reference::Top2Gating(rows, {}, options, noise).slot}) {
        EXPECT_TRUE(TensorEqual(slot, whole.slot.Rows(begin, begin + part)));
      }
      EXPECT_TRUE(
          TensorEqual(routing.expert, whole.expert.Rows(begin, begin + part)));
    }
  }
}

TEST(Top2Gating, RejectsWhatIsNotLogits) {
  const auto gate = [](const Tensor& logits, const Tensor& valid,
                       const GatingNoise& noise) {
    return Top2Gating(logits, valid, {}, noise);
  };
  const Tensor logits = Tensor::Zeros(ElementType::kFloat32, {3, 4});
  EXPECT_THAT(gate(Tensor(ElementType::kInt32, {3, 4}), {}, {}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("expected logits f32[T, E]")));
  EXPECT_THAT(gate({}, {}, {}), StatusIs(absl::StatusCode::kInvalidArgument,
                                         HasSubstr("logits")));
  EXPECT_THAT(
      gate(Tensor(ElementType::kFloat32, {3, 0}), {}, {}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("f32[3, 0]")));
  EXPECT_THAT(gate(logits, Tensor::Ints({2}, {1, 1}), {}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("i32[3], got i32[2]")));
  const std::vector<float> noise(2);
  EXPECT_THAT(gate(logits, {}, {.uniform = noise}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("expected 3 uniforms")));
  EXPECT_THAT(
      gate(logits, {}, {.gumbel = noise}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("12 Gumbel")));
}

TEST(Top2Gating, RejectsOptionsOutOfRange) {
  const auto expect_error = [](const GatingOptions& options,
                               const char* message) {
    EXPECT_THAT(
        ValidateGating(options),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  };
  expect_error({.random_threshold = 0}, "random_threshold");
  expect_error({.capacity_factor = -1}, "capacity_factor");
  expect_error({.capacity_factor = std::nan("")}, "capacity_factor");
  expect_error({.min_capacity = -1}, "min_capacity");
  expect_error({.capacity = -1}, "capacity >= 0, got -1");
  expect_error({.group_size = -1}, "group_size");
  expect_error({.group_size = int64_t{1} << 31}, "group_size in [0, 2^31)");
  expect_error({.order = SlotOrder::kPosition, .literal = true}, "literal");
}

TEST(Top2Gating, WithoutLossesRoutesTheSame) {
  const Tensor logits = RandomTensor({50, 12}, 3, 4.0f);
  ASSERT_OK_AND_ASSIGN(const Routing with, Top2Gating(logits, {}, {}, {}));
  ASSERT_OK_AND_ASSIGN(const Routing without,
                       Top2Gating(logits, {}, {.losses = false}, {}));
  EXPECT_TRUE(TensorEqual(with.slot, without.slot));
  EXPECT_TRUE(TensorEqual(with.weight, without.weight));
  EXPECT_TRUE(without.log_sum.empty());
  EXPECT_EQ(without.balance_loss.f32()[0], 0.0f);
  EXPECT_GT(with.balance_loss.f32()[0], 0.0f);
}

TEST(Top2Gating, ANanSpoilsNoIndex) {
  Tensor logits = RandomTensor({40, 40}, 9);
  for (int64_t i = 0; i < logits.size(); i += 3) logits.f32()[i] = kNan;
  std::fill_n(logits.f32(), 40, kNan);
  for (const auto order : {SlotOrder::kToken, SlotOrder::kBatchPriority,
                           SlotOrder::kPosition, SlotOrder::kProbability}) {
    ASSERT_OK_AND_ASSIGN(const Routing routing,
                         Top2Gating(logits, {}, {.order = order}, {}));
    for (int64_t t = 0; t < 40; ++t) {
      const int32_t* e = routing.expert.i32() + 2 * t;
      EXPECT_NE(e[0], e[1]);
      EXPECT_TRUE(e[0] >= 0 && e[0] < 40 && e[1] >= 0 && e[1] < 40);
    }
  }
}

}  // namespace
}  // namespace gshard
