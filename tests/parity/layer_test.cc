#include <gtest/gtest.h>

#include <string>

#include "tests/parity/layer_parity.h"

namespace gshard {
namespace {

class LayerParity : public testing::TestWithParam<const char*> {};

TEST_P(LayerParity, ForwardAndGradients) {
  CheckLayer(GetParam(), Backend::kCpu, nullptr);
}

INSTANTIATE_TEST_SUITE_P(Layers, LayerParity, testing::ValuesIn(kLayerFixtures),
                         [](const auto& info) {
                           return std::string(info.param);
                         });

}  // namespace
}  // namespace gshard
