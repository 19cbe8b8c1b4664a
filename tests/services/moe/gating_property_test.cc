// Properties of gating for any logits and options: the fast form equals the
// reference, and both keep the paper's guarantees. Failures print their seed.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <vector>

#include "services/base/random.h"
#include "services/moe/gating.h"
#include "tests/reference/gating.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

constexpr uint64_t kCases = 400;

struct Case {
  Tensor logits, valid;
  GatingOptions options;
  uint64_t key;

  int64_t T() const { return logits.dim(0); }
  int64_t E() const { return logits.dim(1); }
  int64_t S() const {
    return options.group_size > 0 ? options.group_size
                                  : std::max<int64_t>(T(), 1);
  }
  bool IsValid(int64_t t) const {
    return valid.empty() || valid.data<uint8_t>()[t] != 0;
  }
};

Case MakeCase(uint64_t seed) {
  uint64_t draws = 0;
  const auto below = [&](uint64_t n) { return RandomBelow(seed, draws++, n); };
  Case c;
  const int64_t T = below(10) == 0 ? below(3) : below(150);
  const int64_t E = below(8) == 0 ? 1 + below(2) : 1 + below(90);
  c.logits = RandomTensor({T, E}, FoldIn(seed, "logits"),
                          std::pow(2.0f, static_cast<float>(below(6)) - 2.0f));
  if (below(2) == 0) {
    c.valid = Tensor(ElementType::kUint8, {T});
    for (int64_t t = 0; t < T; ++t) {
      const bool padding = RandomBelow(FoldIn(seed, "padding"), t, 4) == 0;
      c.valid.data<uint8_t>()[t] = !padding;
      if (padding) std::fill_n(c.logits.f32() + t * E, E, std::nanf(""));
    }
  }
  c.options.second_expert = static_cast<SecondExpertPolicy>(below(3));
  c.options.random_threshold = below(2) ? 0.5f : 0.2f;
  c.options.normalize = static_cast<Normalize>(below(3));
  c.options.order = static_cast<SlotOrder>(below(4));
  // Makes equal logits common, but not where tokens are ordered by probability:
  // equal probabilities of different tokens are equal only up to rounding.
  if (below(3) == 0 && (c.options.order == SlotOrder::kToken ||
                        c.options.order == SlotOrder::kPosition)) {
    for (float& x : c.logits.span<float>()) x = std::round(x);
  }
  c.options.literal = c.options.order <= SlotOrder::kBatchPriority && below(2);
  c.options.drop = below(4) != 0;
  c.options.capacity_factor = 0.25 * static_cast<double>(1 + below(8));
  c.options.group_size = below(3) == 0 ? 0 : 1 + below(60);
  c.options.balance_both_choices = below(3) == 0;
  c.key = FoldIn(seed, "key");
  return c;
}

class GatingProperties : public testing::Test {
 protected:
  // Calls check(case, routing) for many cases.
  template <typename Check>
  void ForEachCase(Check check) {
    for (uint64_t seed = 0; seed < kCases; ++seed) {
      SCOPED_TRACE(testing::Message() << "seed " << seed);
      const Case c = MakeCase(seed);
      ASSERT_OK_AND_ASSIGN(
          const Routing routing,
          Top2Gating(c.logits, c.valid, c.options, {.key = c.key}));
      check(c, routing);
      if (HasFailure()) return;
    }
  }
};

TEST_F(GatingProperties, FastIsTheDefinition) {
  ForEachCase([](const Case& c, const Routing& fast) {
    const Routing slow =
        reference::Top2Gating(c.logits, c.valid, c.options, {.key = c.key});
    EXPECT_TRUE(TensorEqual(fast.expert, slow.expert));
    EXPECT_TRUE(TensorEqual(fast.slot, slow.slot));
    EXPECT_TRUE(TensorEqual(fast.choice_count, slow.choice_count));
    EXPECT_TRUE(TensorEqual(fast.kept_count, slow.kept_count));
    EXPECT_TRUE(TensorEqual(fast.overflow_count, slow.overflow_count));
    EXPECT_TRUE(TensorNear(fast.weight, slow.weight, 1e-6f));
    EXPECT_TRUE(TensorNear(fast.balance_loss, slow.balance_loss, 1e-5f));
    EXPECT_TRUE(TensorNear(fast.z_loss, slow.z_loss, 1e-5f));
    EXPECT_TRUE(TensorNear(fast.log_sum.empty() ? slow.log_sum : fast.log_sum,
                           slow.log_sum, 1e-6f));
  });
}

TEST_F(GatingProperties, ChoicesAreDistinctExpertsAndPaddingHasNone) {
  ForEachCase([](const Case& c, const Routing& routing) {
    for (int64_t t = 0; t < c.T(); ++t) {
      const int32_t* e = routing.expert.i32() + 2 * t;
      if (!c.IsValid(t)) {
        EXPECT_EQ(e[0], -1);
        EXPECT_EQ(e[1], -1);
        EXPECT_EQ(routing.slot.i32()[2 * t], -1);
        EXPECT_EQ(routing.slot.i32()[2 * t + 1], -1);
        continue;
      }
      EXPECT_NE(e[0], e[1]);
      EXPECT_TRUE(e[0] >= 0 && e[0] < c.E());
      EXPECT_TRUE(c.E() == 1 ? e[1] == -1 : e[1] >= 0 && e[1] < c.E());
    }
  });
}

TEST_F(GatingProperties, SlotsAreDistinctWithinCapacityAndWithoutHoles) {
  ForEachCase([](const Case& c, const Routing& routing) {
    const int64_t capacity = Capacity(c.options, c.T(), c.E());
    std::map<std::pair<int64_t, int32_t>, std::set<int32_t>> slots;
    int64_t kept = 0;
    for (int64_t i = 0; i < 2 * c.T(); ++i) {
      const int32_t slot = routing.slot.i32()[i];
      if (slot < 0) continue;
      ++kept;
      EXPECT_LT(slot, capacity);
      std::set<int32_t>& used = slots[{i / 2 / c.S(), routing.expert.i32()[i]}];
      EXPECT_TRUE(used.insert(slot).second);
    }
    for (const auto& [expert, used] : slots) {
      EXPECT_LE(static_cast<int64_t>(used.size()), capacity);
      if (!c.options.literal) {
        EXPECT_EQ(*used.rbegin() + 1, static_cast<int32_t>(used.size()));
      }
    }
    int64_t counted = 0;
    for (const int32_t n : routing.kept_count.span<int32_t>()) counted += n;
    EXPECT_EQ(counted, kept);
  });
}

TEST_F(GatingProperties, WeightsSumToWhatIsKept) {
  ForEachCase([](const Case& c, const Routing& routing) {
    for (int64_t t = 0; t < c.T(); ++t) {
      const float* w = routing.weight.f32() + 2 * t;
      const int32_t* slot = routing.slot.i32() + 2 * t;
      for (int k = 0; k < 2; ++k) {
        if (slot[k] < 0) {
          EXPECT_EQ(w[k], 0.0f);
        }
      }
      const int kept = (slot[0] >= 0) + (slot[1] >= 0);
      const float sum = w[0] + w[1];
      EXPECT_LE(sum, 1.0f + 1e-6f);
      if (kept == 2) {
        EXPECT_GE(w[0], w[1]);
      }
      if (c.options.normalize == Normalize::kNever) continue;
      if (kept == 2 ||
          (kept == 1 && c.options.normalize == Normalize::kAfterCapacity)) {
        EXPECT_NEAR(sum, 1.0f, 1e-6f);
      } else if (kept == 1 && slot[0] >= 0) {
        EXPECT_GE(w[0], 0.5f);
      } else if (kept == 1) {
        EXPECT_LE(w[1], 0.5f);
      }
    }
  });
}

TEST_F(GatingProperties, FirstChoicesComeFirstAndLowerTokensBeforeHigher) {
  ForEachCase([](const Case& c, const Routing& routing) {
    if (c.options.order != SlotOrder::kToken) return;
    for (int64_t begin = 0; begin < c.T(); begin += c.S()) {
      std::vector<int64_t> kept_firsts(c.E(), 0);
      std::vector<bool> dropped(c.E(), false);
      const int64_t end = std::min(begin + c.S(), c.T());
      for (int64_t t = begin; t < end; ++t) {
        const int32_t e = routing.expert.i32()[2 * t];
        if (e < 0) continue;
        if (routing.slot.i32()[2 * t] < 0) {
          dropped[e] = true;
        } else {
          EXPECT_FALSE(dropped[e]) << "token " << t << " after a dropped one";
          EXPECT_EQ(routing.slot.i32()[2 * t], kept_firsts[e]++);
        }
      }
      for (int64_t t = begin; t < end; ++t) {
        const int32_t slot = routing.slot.i32()[2 * t + 1];
        if (slot < 0) continue;
        EXPECT_GE(slot, kept_firsts[routing.expert.i32()[2 * t + 1]]);
      }
    }
  });
}

TEST_F(GatingProperties, CountsAndLossesKnowNeitherCapacityNorNoise) {
  ForEachCase([](const Case& c, const Routing& routing) {
    if (c.options.second_expert == SecondExpertPolicy::kSampling) return;
    GatingOptions options = c.options;
    options.drop = !options.drop;
    ASSERT_OK_AND_ASSIGN(
        const Routing other,
        Top2Gating(c.logits, c.valid, options, {.key = c.key + 1}));
    EXPECT_TRUE(TensorEqual(routing.choice_count, other.choice_count));
    EXPECT_TRUE(TensorEqual(routing.balance_loss, other.balance_loss));
    EXPECT_TRUE(TensorEqual(routing.z_loss, other.z_loss));
    int64_t counted = 0, valid = 0;
    for (const int32_t n : routing.choice_count.span<int32_t>()) counted += n;
    for (int64_t t = 0; t < c.T(); ++t) valid += c.IsValid(t);
    EXPECT_EQ(counted,
              c.options.balance_both_choices && c.E() > 1 ? 2 * valid : valid);
  });
}

TEST_F(GatingProperties, DroplessLosesNothing) {
  ForEachCase([](const Case& c, const Routing&) {
    GatingOptions options = c.options;
    options.drop = false;
    options.second_expert = SecondExpertPolicy::kAll;
    ASSERT_OK_AND_ASSIGN(const Routing routing,
                         Top2Gating(c.logits, c.valid, options, {}));
    for (int64_t i = 0; i < 2 * c.T(); ++i) {
      EXPECT_EQ(routing.slot.i32()[i] >= 0, routing.expert.i32()[i] >= 0);
    }
  });
}

TEST_F(GatingProperties, GroupsAreIndependent) {
  ForEachCase([](const Case& c, const Routing& routing) {
    if (c.options.group_size == 0 || c.T() == 0) return;
    // Other logits in every group but one, the same noise.
    const int64_t g = static_cast<int64_t>(c.key % ((c.T() - 1) / c.S() + 1));
    const int64_t begin = g * c.S(), end = std::min(c.T(), begin + c.S());
    Tensor logits = RandomTensor(c.logits.dims(), c.key);
    std::copy(c.logits.f32() + begin * c.E(), c.logits.f32() + end * c.E(),
              logits.f32() + begin * c.E());
    ASSERT_OK_AND_ASSIGN(
        const Routing other,
        Top2Gating(logits, c.valid, c.options, {.key = c.key}));
    EXPECT_TRUE(TensorEqual(routing.expert.Rows(begin, end),
                            other.expert.Rows(begin, end)));
    EXPECT_TRUE(TensorEqual(routing.slot.Rows(begin, end),
                            other.slot.Rows(begin, end)));
    EXPECT_TRUE(TensorEqual(routing.weight.Rows(begin, end),
                            other.weight.Rows(begin, end)));
  });
}

// Routing and losses do not depend on the contents of padding.
TEST_F(GatingProperties, PaddingIsNeverRead) {
  ForEachCase([](const Case& c, const Routing& routing) {
    if (c.valid.empty()) return;
    Tensor logits = c.logits.Clone();
    for (float& x : logits.span<float>()) {
      if (std::isnan(x)) x = 7.0f;
    }
    ASSERT_OK_AND_ASSIGN(
        const Routing other,
        Top2Gating(logits, c.valid, c.options, {.key = c.key}));
    EXPECT_TRUE(TensorEqual(routing.slot, other.slot));
    EXPECT_TRUE(TensorEqual(routing.weight, other.weight));
    EXPECT_TRUE(TensorEqual(routing.balance_loss, other.balance_loss));
    EXPECT_TRUE(TensorEqual(routing.z_loss, other.z_loss));
  });
}

TEST(GatingLimits, NoNoiseIsPolicyAllAndFullNoiseIsTop1) {
  const Tensor logits = RandomTensor({64, 8}, 3, 4.0f);
  ASSERT_OK_AND_ASSIGN(
      const Routing all,
      Top2Gating(logits, {}, {.second_expert = SecondExpertPolicy::kAll}, {}));
  std::vector<float> uniform(64, 0.0f);
  ASSERT_OK_AND_ASSIGN(const Routing zero,
                       Top2Gating(logits, {}, {}, {.uniform = uniform}));
  EXPECT_TRUE(TensorEqual(all.slot, zero.slot));
  uniform.assign(64, 0x1.fffffep-1f);
  ASSERT_OK_AND_ASSIGN(const Routing one,
                       Top2Gating(logits, {}, {}, {.uniform = uniform}));
  for (int64_t t = 0; t < 64; ++t) EXPECT_EQ(one.slot.i32()[2 * t + 1], -1);
}

TEST(GatingLimits, SecondChoicesAreKeptAsOftenAsTwiceTheirWeight) {
  constexpr int64_t kTokens = 20000;
  for (const float gap : {0.2f, 1.0f, 3.0f}) {
    Tensor logits(ElementType::kFloat32, {kTokens, 2});
    for (int64_t t = 0; t < kTokens; ++t) {
      logits.f32()[2 * t] = gap;
      logits.f32()[2 * t + 1] = 0.0f;
    }
    ASSERT_OK_AND_ASSIGN(const Routing routing,
                         Top2Gating(logits, {}, {.drop = false}, {.key = 11}));
    const double p = 2.0 / (1.0 + std::exp(double{gap}));
    const double kept = routing.kept_count.i32()[1];
    EXPECT_NEAR(kept / kTokens, p, 5.0 * std::sqrt(p * (1 - p) / kTokens));
  }
}

// Gumbel-max draws expert e with probability p_e / (1 - p_first).
TEST(GatingLimits, SamplingDrawsFromTheSoftmax) {
  constexpr int64_t kTokens = 20000;
  const float row[4] = {3.0f, 1.0f, 0.0f, 2.0f};
  Tensor logits(ElementType::kFloat32, {kTokens, 4});
  for (int64_t i = 0; i < logits.size(); ++i) logits.f32()[i] = row[i % 4];
  ASSERT_OK_AND_ASSIGN(
      const Routing routing,
      Top2Gating(
          logits, {},
          {.second_expert = SecondExpertPolicy::kSampling, .drop = false},
          {.key = 5}));
  const double total = std::exp(1.0) + 1.0 + std::exp(2.0);
  for (int e = 1; e < 4; ++e) {
    const double p = std::exp(double{row[e]}) / total;
    EXPECT_NEAR(routing.kept_count.i32()[e] / double{kTokens}, p,
                5.0 * std::sqrt(p * (1 - p) / kTokens));
  }
}

}  // namespace
}  // namespace gshard
