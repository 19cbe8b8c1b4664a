// Our gating against the recorded results of other implementations: the same
// experts, slots and drops, weights to 1e-6, balance loss to 1e-5.

#include "services/moe/gating.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "tests/parity/fixture.h"
#include "tests/parity/implementations.h"
#include "tests/reference/gating.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

struct GatingCase {
  Implementation implementation;
  std::string fixture;
};

void PrintTo(const GatingCase& c, std::ostream* out) {
  *out << c.implementation.name << " on " << c.fixture;
}

const char* const kFixtures[] = {"gate_tiny", "gate_tiny_overflow", "gate_g4",
                                 "gate_e64", "gate_e64_overflow"};

std::vector<GatingCase> Cases() {
  std::vector<GatingCase> cases;
  for (const Implementation& implementation : Implementations()) {
    for (const std::string fixture : kFixtures) {
      const bool overflow = fixture.find("overflow") != std::string::npos;
      if (overflow && implementation.only_exact_capacity) continue;
      cases.push_back({implementation, fixture});
    }
  }
  return cases;
}

// Compares the routing of either form of our gating with that recorded for `x`.
void ExpectSame(const Routing& routing, const Fixture& fixture,
                const Implementation& x) {
  const int64_t groups = static_cast<int64_t>(fixture.Number("G"));
  const int64_t group_size = static_cast<int64_t>(fixture.Number("S"));
  const double experts = fixture.Number("E");
  const uint8_t* padding = fixture.Get("padding_mask").data<uint8_t>();
  int64_t valid = 0;
  for (int k = 0; k < 2; ++k) {
    const std::string suffix = std::to_string(k + 1);
    const int32_t* expert = fixture.Get(x.name + ".e" + suffix).i32();
    const int32_t* slot = fixture.Get(x.name + ".p" + suffix).i32();
    const float* weight = fixture.Get(x.name + ".w" + suffix).f32();
    valid = 0;
    for (int64_t t = 0; t < groups * group_size; ++t) {
      SCOPED_TRACE(testing::Message() << "token " << t << " choice " << k);
      const int64_t i = 2 * t + k;
      if (x.padded && padding[t]) {
        EXPECT_EQ(routing.expert.i32()[i], -1);
        EXPECT_EQ(routing.slot.i32()[i], -1);
        EXPECT_EQ(slot[t], -1);
        continue;
      }
      ++valid;
      EXPECT_EQ(routing.expert.i32()[i], expert[t]);
      if (slot[t] == -2) {
        EXPECT_GE(routing.slot.i32()[i], 0);
      } else {
        EXPECT_EQ(routing.slot.i32()[i], slot[t]);
      }
      if (k == 0 && x.first_weight_differs) continue;
      EXPECT_NEAR(routing.weight.f32()[i], weight[t], 1e-6);
    }
  }
  const Tensor& aux = fixture.Get(x.name + ".aux");
  const double theirs = std::accumulate(aux.data<double>(),
                                        aux.data<double>() + aux.size(), 0.0) /
                        static_cast<double>(aux.size());
  const double ours = routing.balance_loss.f32()[0];
  const double share =
      static_cast<double>(valid) / static_cast<double>(groups * group_size);
  switch (x.aux) {
    case AuxScale::kOurs:
      EXPECT_NEAR(ours, theirs, 1e-5);
      return;
    case AuxScale::kPrinted:
      EXPECT_NEAR(ours, theirs * experts * experts, 1e-5);
      return;
    case AuxScale::kOverAllTokens:
      EXPECT_NEAR(ours * share * share, theirs, 1e-5);
      return;
    case AuxScale::kNotComparable:
      return;
  }
}

class GatingParity : public testing::TestWithParam<GatingCase> {};

TEST_P(GatingParity, RoutesAlike) {
  const Implementation& x = GetParam().implementation;
  ASSERT_OK_AND_ASSIGN(const Fixture fixture,
                       Fixture::Read(GetParam().fixture));
  ASSERT_TRUE(fixture.Has(x.name + ".e1"));
  const int64_t tokens = fixture.Get("rnd").size();
  const int64_t experts = static_cast<int64_t>(fixture.Number("E"));
  const Tensor logits = fixture.Get("logits").Reshaped({tokens, experts});
  GatingOptions options = x.options;
  options.group_size = static_cast<int64_t>(fixture.Number("S"));
  options.capacity = fixture.Get(x.name + ".C").i32()[0];
  const GatingNoise noise = {.uniform = fixture.Get("rnd").span<float>(),
                             .gumbel = fixture.Get("gumbel").span<float>()};
  Tensor valid;
  if (x.padded) {
    valid = fixture.Get("padding_mask").Reshaped({tokens}).Clone();
    for (uint8_t& v : valid.span<uint8_t>()) v = !v;
  }

  ASSERT_OK_AND_ASSIGN(const Routing routing,
                       Top2Gating(logits, valid, options, noise));
  ExpectSame(routing, fixture, x);
  SCOPED_TRACE("reference");
  ExpectSame(reference::Top2Gating(logits, valid, options, noise), fixture, x);
}

INSTANTIATE_TEST_SUITE_P(Implementations, GatingParity,
                         testing::ValuesIn(Cases()),
                         [](const testing::TestParamInfo<GatingCase>& info) {
                           return info.param.implementation.name + "_on_" +
                                  info.param.fixture;
                         });

TEST(GatingFixtures, HaveNoImplementationOutsideTheTable) {
  std::vector<std::string> names;
  for (const Implementation& x : Implementations()) names.push_back(x.name);
  for (const char* const name : kFixtures) {
    ASSERT_OK_AND_ASSIGN(const Fixture fixture, Fixture::Read(name));
    EXPECT_THAT(fixture.Implementations(), testing::IsSubsetOf(names));
  }
}

TEST(GatingFixtures, AreMadeByTheGenerator) {
  for (const char* const name : kFixtures) {
    SCOPED_TRACE(name);
    ASSERT_OK_AND_ASSIGN(const Fixture fixture, Fixture::Read(name));
    const int64_t tokens = fixture.Get("rnd").size();
    const int64_t experts = static_cast<int64_t>(fixture.Number("E"));
    EXPECT_TRUE(TensorEqual(
        MakeLogits(static_cast<uint64_t>(fixture.Number("seed")), tokens,
                   experts, fixture.Number("scale"), fixture.Number("skew")),
        fixture.Get("logits").Reshaped({tokens, experts})));
    EXPECT_TRUE(TensorEqual(
        MakeUniforms(static_cast<uint64_t>(fixture.Number("rnd_seed")), tokens),
        fixture.Get("rnd").Reshaped({tokens})));
  }
}

}  // namespace
}  // namespace gshard
