// Our gating against what other implementations did (gate_parity.h): as a
// function, as the reference has it, and as an operator.

#include "services/moe/gating.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/parity/gate_parity.h"
#include "tests/reference/gating.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

class GatingParity : public testing::TestWithParam<GateCase> {};

TEST_P(GatingParity, RoutesAlike) {
  const Implementation& x = GetParam().implementation;
  ASSERT_OK_AND_ASSIGN(const Fixture fixture,
                       Fixture::Read(GetParam().fixture));
  ASSERT_TRUE(fixture.Has(x.name + ".e1"));
  const GateInputs inputs = InputsOf(GetParam(), fixture);
  const GatingNoise noise = {.uniform = fixture.Get("rnd").span<float>(),
                             .gumbel = fixture.Get("gumbel").span<float>()};
  ASSERT_OK_AND_ASSIGN(
      const Routing routing,
      Top2Gating(inputs.logits, inputs.valid, inputs.options, noise));
  ExpectRoutesAs(x, fixture, routing);
  SCOPED_TRACE("reference");
  ExpectRoutesAs(x, fixture,
                 reference::Top2Gating(inputs.logits, inputs.valid,
                                       inputs.options, noise));
}

INSTANTIATE_TEST_SUITE_P(Implementations, GatingParity,
                         testing::ValuesIn(GateCases()),
                         [](const testing::TestParamInfo<GateCase>& info) {
                           return info.param.name();
                         });

class GateProgramParity : public testing::TestWithParam<GateCase> {};

TEST_P(GateProgramParity, RoutesAlike) {
  CheckGateProgram(GetParam(), Backend::kCpu, nullptr);
}

INSTANTIATE_TEST_SUITE_P(Implementations, GateProgramParity,
                         testing::ValuesIn(GateProgramCases()),
                         [](const testing::TestParamInfo<GateCase>& info) {
                           return info.param.name();
                         });

TEST(GatingFixtures, HaveNoImplementationOutsideTheTable) {
  std::vector<std::string> names;
  for (const Implementation& x : Implementations()) names.push_back(x.name);
  for (const char* const name : kGateFixtures) {
    ASSERT_OK_AND_ASSIGN(const Fixture fixture, Fixture::Read(name));
    EXPECT_THAT(fixture.Implementations(), testing::IsSubsetOf(names));
  }
}

TEST(GatingFixtures, AreMadeByTheGenerator) {
  for (const char* const name : kGateFixtures) {
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
