#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/services/partition/lowering/partitioned_case.h"

namespace gshard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// rms_norm, or layer_norm, of `shape`, and optionally its gradients.
template <typename Function>
Builder NormCase(bool layer, Shape shape, bool gradient, Function annotate) {
  Builder b("norm");
  const ValueId x = b.Input("x", {ElementType::kFloat32, shape});
  const ValueId scale = b.Parameter("scale", {shape.back()});
  annotate(b, x);
  std::vector<ValueId> values = {x, scale};
  ValueId y;
  if (layer) {
    values.push_back(b.Parameter("bias", {shape.back()}));
    y = b.AddNode("layer_norm", values, {{"epsilon", 1e-3}})[0];
  } else {
    y = b.RmsNorm(x, scale, 1e-3);
  }
  b.Output("y", y);
  if (gradient) AddWeightedGradients(b, y, values);
  return b;
}

TEST(NormLoweringTest, RmsNormOfASplitRowReducesOneSumEachWay) {
  for (const int64_t devices : {2, 3, 4, 8}) {
    for (const int64_t size : {5, 16}) {
      const auto split = [](Builder& b, ValueId x) { Split(b, x, 2, "d"); };
      EXPECT_THAT(CheckCase(NormCase(false, {2, 3, size}, false, split),
                            Line(devices), {}, 1e-5f),
                  ElementsAre("all_reduce"));
      EXPECT_THAT(CheckCase(NormCase(false, {2, 3, size}, true, split),
                            Line(devices), {}, 1e-5f),
                  ElementsAre("all_reduce", "all_reduce"));
    }
  }
}

TEST(NormLoweringTest, LayerNormOfASplitRowReducesTwoSumsEachWay) {
  for (const int64_t devices : {2, 3, 4, 8}) {
    for (const int64_t size : {5, 16}) {
      const auto split = [](Builder& b, ValueId x) { Split(b, x, 2, "d"); };
      EXPECT_THAT(CheckCase(NormCase(true, {2, 3, size}, false, split),
                            Line(devices), {}, 1e-5f),
                  ElementsAre("all_reduce", "all_reduce"));
      EXPECT_EQ(CheckCase(NormCase(true, {2, 3, size}, true, split),
                          Line(devices), {}, 1e-5f)
                    .size(),
                4);
    }
  }
}

TEST(NormLoweringTest, WholeRowsStayOneOperator) {
  for (const bool layer : {false, true}) {
    for (const int64_t devices : {1, 2, 3, 8}) {
      const auto split = [](Builder& b, ValueId x) { Split(b, x, 0, "d"); };
      EXPECT_THAT(CheckCase(NormCase(layer, {5, 3, 6}, false, split),
                            Line(devices), {}, 0),
                  IsEmpty());
      // The gradients of scale and bias are sums over the split rows.
      CheckCase(NormCase(layer, {5, 3, 6}, true, split), Line(devices), {},
                1e-5f);
    }
  }
}

TEST(NormLoweringTest, RowsAndColumnsOnTwoAxes) {
  for (const bool layer : {false, true}) {
    for (const int64_t size : {4, 5}) {
      CheckCase(NormCase(layer, {5, 3, size}, true,
                         [](Builder& b, ValueId x) {
                           Split(b, x, 0, "x");
                           Split(b, x, 2, "y");
                         }),
                Square(), {}, 1e-5f);
      CheckCase(NormCase(layer, {5, 3, size}, true,
                         [](Builder& b, ValueId x) {
                           Split(b, x, 2, "x");
                           Split(b, x, 2, "y");
                         }),
                Square(), {}, 1e-5f);
    }
  }
}

}  // namespace
}  // namespace gshard
