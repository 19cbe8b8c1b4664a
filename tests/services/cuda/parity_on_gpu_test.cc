// The recorded results of other implementations, on a GPU.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/parity/gate_parity.h"
#include "tests/parity/layer_parity.h"
#include "tests/services/cuda/gpu_test.h"

namespace gshard {
namespace {

// Without the largest fixture, whose logits gate_e64_overflow has, too: they
// take seconds on an emulation.
std::vector<GateCase> SmallerCases() {
  std::vector<GateCase> cases = GateProgramCases();
  std::erase_if(cases,
                [](const GateCase& c) { return c.fixture == "gate_e64"; });
  return cases;
}

class GateParityOnGpu : public GpuTest,
                        public testing::WithParamInterface<GateCase> {};

TEST_P(GateParityOnGpu, RoutesAlike) {
  CheckGateProgram(GetParam(), Backend::kCuda, device_.get());
}

INSTANTIATE_TEST_SUITE_P(Implementations, GateParityOnGpu,
                         testing::ValuesIn(SmallerCases()),
                         [](const testing::TestParamInfo<GateCase>& info) {
                           return info.param.name();
                         });

class LayerParityOnGpu : public GpuTest,
                         public testing::WithParamInterface<const char*> {};

TEST_P(LayerParityOnGpu, ForwardAndGradients) {
  CheckLayer(GetParam(), Backend::kCuda, device_.get());
}

INSTANTIATE_TEST_SUITE_P(Layers, LayerParityOnGpu,
                         testing::ValuesIn(kLayerFixtures),
                         [](const auto& info) {
                           return std::string(info.param);
                         });

}  // namespace
}  // namespace gshard
