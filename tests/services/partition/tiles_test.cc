#include "tests/testing/tiles.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

DeviceMesh TilesMesh() {
  return *DeviceMesh::Create({{"x", 2, "device"}, {"y", 2, "device"}});
}

Placed Place(Shape shape, std::vector<Axes> dims,
             ElementType type = ElementType::kFloat32) {
  Placed placed{.type = {type, std::move(shape)},
                .sharding = {},
                .role = 0,
                .device_order = {}};
  for (Axes& axes : dims) {
    placed.sharding.dims.push_back({.axes = std::move(axes), .token_axes = {}});
  }
  return placed;
}

std::vector<Tensor> Tiles(const Tensor& whole, const Placed& placed,
                          const Tensor& sizes = Tensor()) {
  std::vector<Tensor> tiles;
  for (int64_t device = 0; device < 4; ++device) {
    auto tile = TileOf(whole, placed, TilesMesh(), device, sizes);
    EXPECT_OK(tile.status());
    tiles.push_back(tile.ok() ? *std::move(tile) : Tensor());
  }
  return tiles;
}

TEST(TilesTest, PaddingIsNotANumber) {
  const Tensor whole = RandomTensor({3, 5}, 1);
  const Placed placed = Place({3, 5}, {{0}, {1}});
  const std::vector<Tensor> tiles = Tiles(whole, placed);
  for (const Tensor& tile : tiles) EXPECT_EQ(tile.dims(), Dims({2, 3}));
  EXPECT_EQ(tiles[3].f32()[0], whole.f32()[2 * 5 + 3]);
  EXPECT_TRUE(std::isnan(tiles[3].f32()[2]));
  EXPECT_TRUE(std::isnan(tiles[2].f32()[3]));
  ASSERT_OK_AND_ASSIGN(const Tensor joined,
                       JoinTiles(tiles, {3, 5}, placed, TilesMesh()));
  EXPECT_TRUE(TensorEqual(joined, whole));
  const Tensor ints = Tensor::Ints({3}, {1, 2, 3});
  const Placed cut = Place({3}, {{1}}, ElementType::kInt32);
  EXPECT_EQ(Tiles(ints, cut)[1].i32()[1], std::numeric_limits<int32_t>::min());
}

TEST(TilesTest, MoreDevicesThanElements) {
  const Tensor whole = RandomTensor({1}, 1);
  const Placed placed = Place({1}, {{0, 1}});
  const std::vector<Tensor> tiles = Tiles(whole, placed);
  EXPECT_TRUE(std::isnan(tiles[3].f32()[0]));
  ASSERT_OK_AND_ASSIGN(const Tensor joined,
                       JoinTiles(tiles, {1}, placed, TilesMesh()));
  EXPECT_TRUE(TensorEqual(joined, whole));
}

TEST(TilesTest, CopiesMustAgreeBitForBit) {
  const Tensor whole = RandomTensor({4}, 1);
  const Placed placed = Place({4}, {{0}});
  std::vector<Tensor> tiles = Tiles(whole, placed);
  tiles[3] = tiles[3].Clone();
  tiles[3].f32()[0] = std::nextafter(tiles[3].f32()[0], 2.0f);
  EXPECT_THAT(JoinTiles(tiles, {4}, placed, TilesMesh()),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("device 3")));
}

TEST(TilesTest, AnOrderPutsTilesOnOtherDevices) {
  const Tensor whole = RandomTensor({4}, 1);
  Placed placed = Place({4}, {{0, 1}});
  placed.device_order = {2, 0, 3, 1};
  const std::vector<Tensor> tiles = Tiles(whole, placed);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(tiles[placed.device_order[i]].f32()[0], whole.f32()[i]);
  }
  ASSERT_OK_AND_ASSIGN(const Tensor joined,
                       JoinTiles(tiles, {4}, placed, TilesMesh()));
  EXPECT_TRUE(TensorEqual(joined, whole));
}

TEST(TilesTest, RaggedRowsFollowTheirExperts) {
  const Tensor whole = RandomTensor({6, 2}, 1);
  const Tensor sizes = Tensor::Ints({3}, {1, 3, 2});
  const Placed placed = Place({Dim::Symbol("R"), 2}, {{0}, {}});
  const std::vector<Tensor> tiles = Tiles(whole, placed, sizes);
  // Device 0 holds experts 0 and 1, device 2 expert 2.
  EXPECT_EQ(tiles[0].dims(), Dims({4, 2}));
  EXPECT_EQ(tiles[2].dims(), Dims({2, 2}));
  ASSERT_OK_AND_ASSIGN(const Tensor joined,
                       JoinTiles(tiles, {6, 2}, placed, TilesMesh(), sizes));
  EXPECT_TRUE(TensorEqual(joined, whole));
  EXPECT_THAT(
      TileOf(whole, placed, TilesMesh(), 0, Tensor::Ints({3}, {1, 1, 1})),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("6 rows")));
}

TEST(TilesTest, RejectsWhatHasNoTiles) {
  const Tensor whole = RandomTensor({5}, 1);
  const Placed symbol = Place({Dim::Symbol("B")}, {{0}});
  EXPECT_THAT(TileOf(whole, symbol, TilesMesh(), 0),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("B = 5 must be a multiple")));
  EXPECT_THAT(TileOf(whole, Place({5, 1}, {{}, {}}), TilesMesh(), 0).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("f32")));
  Placed partial = Place({5}, {{}});
  partial.sharding.partial = {0};
  EXPECT_THAT(TileOf(whole, partial, TilesMesh(), 0),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("partial")));
  Placed by_token = Place({Dim::Symbol("R")}, {{}});
  by_token.sharding.dims[0].token_axes = {0};
  EXPECT_THAT(TileOf(whole, by_token, TilesMesh(), 0),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("token")));
}

}  // namespace
}  // namespace gshard
