#include "tests/parity/gate_parity.h"

#include <gtest/gtest.h>

#include <numeric>

#include "services/moe/graph_ops.h"
#include "tests/testing/op_case.h"
#include "tests/testing/status_matchers.h"

namespace gshard {

std::vector<GateCase> GateCases() {
  std::vector<GateCase> cases;
  for (const Implementation& implementation : Implementations()) {
    for (const std::string fixture : kGateFixtures) {
      const bool overflow = fixture.find("overflow") != std::string::npos;
      if (overflow && implementation.only_exact_capacity) continue;
      cases.push_back({implementation, fixture});
    }
  }
  return cases;
}

std::vector<GateCase> GateProgramCases() {
  std::vector<GateCase> cases = GateCases();
  std::erase_if(cases, [](const GateCase& c) {
    return c.implementation.options.second_expert != SecondExpertPolicy::kAll;
  });
  return cases;
}

GateInputs InputsOf(const GateCase& c, const Fixture& fixture) {
  const Implementation& x = c.implementation;
  const int64_t tokens = fixture.Get("rnd").size();
  const auto experts = static_cast<int64_t>(fixture.Number("E"));
  GateInputs inputs = {
      .logits = fixture.Get("logits").Reshaped({tokens, experts}),
      .valid = Tensor(),
      .options = x.options};
  inputs.options.group_size = static_cast<int64_t>(fixture.Number("S"));
  inputs.options.capacity = fixture.Get(x.name + ".C").i32()[0];
  if (x.padded) {
    inputs.valid = fixture.Get("padding_mask").Reshaped({tokens}).Clone();
    for (uint8_t& v : inputs.valid.span<uint8_t>()) v = !v;
  }
  return inputs;
}

void ExpectRoutesAs(const Implementation& x, const Fixture& fixture,
                    const Routing& routing) {
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

void CheckGateProgram(const GateCase& c, Backend backend, Device* device) {
  RegisterMoeOps();
  ASSERT_OK_AND_ASSIGN(const Fixture fixture, Fixture::Read(c.fixture));
  const GateInputs inputs = InputsOf(c, fixture);
  const int64_t T = inputs.logits.dim(0);
  Tensor valid = Tensor::Ints({T}, std::vector<int32_t>(T, 1));
  for (int64_t t = 0; t < inputs.valid.size(); ++t) {
    valid.i32()[t] = inputs.valid.data<uint8_t>()[t];
  }
  Builder b("gate");
  const auto input = [&b](const char* name, const Tensor& tensor) {
    return b.Input(name, {tensor.type(),
                          Shape(tensor.dims().begin(), tensor.dims().end())});
  };
  Tensor key(ElementType::kInt64, Dims());
  *key.data<int64_t>() = 0;
  const GateValues gate =
      GateTokens(b, input("logits", inputs.logits), input("valid", valid),
                 input("key", key), inputs.options, /*salt=*/0);
  b.Output("expert", gate.expert);
  b.Output("slot", gate.slot);
  b.Output("weight", gate.weight);
  b.Output("balance_loss", gate.balance_loss);
  ASSERT_OK_AND_ASSIGN(Program program, std::move(b).Finish());
  ASSERT_OK_AND_ASSIGN(
      const std::vector<Tensor> results,
      RunOn(std::move(program), backend, device,
            {{"logits", inputs.logits}, {"valid", valid}, {"key", key}}));
  Routing routing;
  routing.expert = results[0];
  routing.slot = results[1];
  routing.weight = results[2];
  routing.balance_loss = results[3];
  ExpectRoutesAs(c.implementation, fixture, routing);
}

}  // namespace gshard
