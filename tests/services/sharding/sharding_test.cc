#include "services/sharding/sharding.h"

#include <gtest/gtest.h>

namespace gshard {
namespace {

DeviceMesh Mesh() {
  return *DeviceMesh::Create(
      {{"x", 3, "device"}, {"y", 2, "device"}, {"one", 1, "device"}});
}

DimSharding By(Axes axes) {
  return {.axes = std::move(axes), .token_axes = {}};
}

TEST(ShardingTest, LocalSizesRoundUp) {
  const DeviceMesh mesh = Mesh();
  EXPECT_EQ(LocalDim(7, By({0}), mesh), Dim(3));
  EXPECT_EQ(LocalDim(7, By({0, 1}), mesh), Dim(2));
  EXPECT_EQ(LocalDim(1, By({0}), mesh), Dim(1));
  EXPECT_EQ(LocalDim(0, By({0}), mesh), Dim(0));
  EXPECT_EQ(LocalDim(7, By({}), mesh), Dim(7));
  EXPECT_TRUE(IsUneven(7, {0}, mesh));
  EXPECT_FALSE(IsUneven(6, {0, 1}, mesh));
  EXPECT_FALSE(IsUneven(Dim::Symbol("B"), {0}, mesh));
}

TEST(ShardingTest, SymbolsNameTheirAxes) {
  const DeviceMesh mesh = Mesh();
  const Dim b = Dim::Symbol("B"), l = Dim::Symbol("L");
  EXPECT_EQ(LocalDim(b, By({0}), mesh), Dim::Symbol("B_by_x"));
  EXPECT_EQ(LocalDim(b, By({1, 0}), mesh), Dim::Symbol("B_by_y_x"));
  // The first factor is split.
  EXPECT_EQ(LocalDim(b * l * 2, By({1}), mesh),
            Dim::Symbol("B_by_y") * l * Dim(2));
}

TEST(ShardingTest, AxesWithOneDeviceSplitNothing) {
  const DeviceMesh mesh = Mesh();
  const Dim b = Dim::Symbol("B");
  EXPECT_EQ(LocalDim(b, By({2}), mesh), b);
  EXPECT_EQ(LocalDim(b, By({2, 0}), mesh), LocalDim(b, By({0}), mesh));
}

TEST(ShardingTest, RaggedRowsAreCutTwice) {
  const DeviceMesh mesh = Mesh();
  const Sharding both{.dims = {{.axes = {0}, .token_axes = {1}}, {}},
                      .partial = {}};
  const Shape local = LocalShape({Dim::Symbol("R"), 5}, both, mesh);
  const Sharding experts{.dims = {By({0}), {}}, .partial = {}};
  EXPECT_FALSE(local[0] == LocalShape({Dim::Symbol("R"), 5}, experts, mesh)[0]);
  EXPECT_EQ(local[1], Dim(5));
  EXPECT_EQ(both.ToString(mesh), "[x|y, -]");
}

TEST(ShardingTest, UsesWhatSplitsOrIsPartial) {
  const DeviceMesh mesh = Mesh();
  const Sharding sharding{.dims = {By({1})}, .partial = {0}};
  EXPECT_TRUE(sharding.Uses(0));
  EXPECT_TRUE(sharding.Uses(1));
  EXPECT_FALSE(sharding.Uses(2));
  EXPECT_FALSE(sharding.IsReplicated());
  EXPECT_TRUE(Sharding::Replicated(2).IsReplicated());
  EXPECT_EQ(sharding.ToString(mesh), "[y] partial x");
}

}  // namespace
}  // namespace gshard
