// reduce_max over dimensions that are split, with ties.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/services/partition/lowering/window_case.h"

namespace gshard {
namespace {

using ::testing::Each;

// Few distinct values, so that many tie, among them 0, which padding may hold.
Tensor Ties(Dims dims, uint64_t seed) {
  Tensor x(ElementType::kFloat32, std::move(dims));
  for (int64_t i = 0; i < x.size(); ++i) {
    x.f32()[i] = -static_cast<float>(RandomBelow(seed, i, 3));
  }
  return x;
}

TEST(ReduceMaxLoweringTest, TiesOnSeveralDevicesShareTheGradient) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    WindowCase c(seed);
    const DeviceMesh mesh = c.Mesh();
    Builder b("reduce_max");
    const Dims dims = {c.Draw(1, 9), c.Draw(1, 9), c.Draw(1, 4)};
    const ValueId x = FloatInput(b, "x", Shape(dims.begin(), dims.end()));
    c.Cut(b, x, {0, 1});
    const std::vector<int64_t> choices[] = {{0}, {1}, {0, 1}, {1, 2}, {}};
    const ValueId y = b.ReduceMax(x, choices[c.Draw(0, 4)]);
    b.Output("y", y);
    AddWeightedGradients(b, y, {x});
    CheckCase(std::move(b), mesh, {{"x", Ties(dims, seed)}}, 0);
    if (HasFailure()) return;
  }
}

TEST(ReduceMaxLoweringTest, OnlyStatisticsAreReduced) {
  Builder b("reduce_max");
  const ValueId x = Split(b, FloatInput(b, "x", {7, 5}), 0, "d");
  const ValueId y = b.ReduceMax(x, {0});
  b.Output("y", y);
  AddWeightedGradients(b, y, {x});
  EXPECT_THAT(CheckCase(std::move(b), Line(4), {{"x", Ties({7, 5}, 1)}}, 0),
              Each("all_reduce"));
}

}  // namespace
}  // namespace gshard
