#include "services/partition/reshard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "services/base/random.h"
#include "services/graph/text.h"
#include "services/partition/ops/collective_ops.h"
#include "tests/testing/partitioned_run.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using ::testing::ElementsAre;

DeviceMesh MeshXY(int64_t x, int64_t y) {
  return *DeviceMesh::Create({{"x", x, "device"}, {"y", y, "device"}});
}

Sharding Lies(std::vector<Axes> dims, Axes partial = {}) {
  Sharding sharding{.dims = {}, .partial = std::move(partial)};
  for (Axes& axes : dims) {
    sharding.dims.push_back({.axes = std::move(axes), .token_axes = {}});
  }
  return sharding;
}

// The program that reshards input "x" from one sharding to another.
absl::StatusOr<Program> Resharding(const DeviceMesh& mesh, const Shape& shape,
                                   const Sharding& from, const Sharding& to) {
  RegisterCollectiveOps();
  const Program nothing;
  ASSIGN_OR_RETURN(const Shardings shardings, Propagate(nothing, mesh));
  const PartitionOptions options;
  Lowering l(nothing, mesh, shardings, options);
  const ValueId x =
      l.b.Input("x", {ElementType::kFloat32, LocalShape(shape, from, mesh)});
  ASSIGN_OR_RETURN(const ValueId y, ReshardDense(l, x, shape, from, to));
  l.b.Output("y", y);
  return std::move(l.b).Finish();
}

std::vector<std::string> Ops(const Program& program) {
  std::vector<std::string> ops;
  for (const Node& node : program.nodes) {
    if (node.op->name != "input") ops.push_back(node.op->name);
  }
  return ops;
}

std::vector<std::string> OpsOf(const Shape& shape, const Sharding& from,
                               const Sharding& to) {
  return Ops(*Resharding(MeshXY(2, 2), shape, from, to));
}

// Each case of reshard.h takes its cheapest way, on a mesh of 2 x 2.
TEST(ReshardTest, TakesTheCheapestWay) {
  const Axes x = {0}, y = {1}, none = {}, both = {0, 1};
  const Shape shape = {4, 8};
  EXPECT_THAT(OpsOf(shape, Lies({x, none}), Lies({x, none})), ElementsAre());
  EXPECT_THAT(OpsOf(shape, Lies({none, none}), Lies({none, x})),
              ElementsAre("part"));
  EXPECT_THAT(OpsOf(shape, Lies({x, none}), Lies({both, none})),
              ElementsAre("part"));
  EXPECT_THAT(OpsOf(shape, Lies({x, none}), Lies({none, none})),
              ElementsAre("all_gather"));
  EXPECT_THAT(OpsOf(shape, Lies({both, none}), Lies({x, none})),
              ElementsAre("all_gather"));
  EXPECT_THAT(OpsOf(shape, Lies({x, none}), Lies({none, x})),
              ElementsAre("all_to_all"));
  EXPECT_THAT(OpsOf(shape, Lies({both, none}), Lies({x, y})),
              ElementsAre("all_to_all"));
  EXPECT_THAT(OpsOf(shape, Lies({x, none}), Lies({y, none})),
              ElementsAre("permute"));
  EXPECT_THAT(OpsOf(shape, Lies({x, y}), Lies({y, x})), ElementsAre("permute"));
  EXPECT_THAT(OpsOf(shape, Lies({none, none}, x), Lies({none, none})),
              ElementsAre("all_reduce"));
  EXPECT_THAT(OpsOf(shape, Lies({none, none}, x), Lies({none, x})),
              ElementsAre("reduce_scatter"));
  EXPECT_THAT(OpsOf(shape, Lies({none, none}, x), Lies({none, y})),
              ElementsAre("all_reduce", "part"));
  // Uneven sizes take one more operator, to pad or to trim.
  EXPECT_THAT(OpsOf({5}, Lies({x}), Lies({none})),
              ElementsAre("all_gather", "slice"));
  EXPECT_THAT(OpsOf({5}, Lies({none}), Lies({x})), ElementsAre("pad", "part"));
}

TEST(ReshardTest, NobodyMakesASumPartial) {
  EXPECT_THAT(Resharding(MeshXY(2, 2), {4}, Lies({{}}), Lies({{}}, {0})),
              StatusIs(absl::StatusCode::kUnimplemented,
                       ::testing::HasSubstr("partial x")));
}

class Random {
 public:
  explicit Random(uint64_t key) : key_(key) {}
  int64_t Below(int64_t n) { return RandomBelow(key_, drawn_++, n); }

  // Each axis splits a dimension, is partial, or is unused.
  Sharding Next(size_t rank, bool may_be_partial) {
    Sharding sharding = Sharding::Replicated(rank);
    const int first = static_cast<int>(Below(2));
    for (const int axis : {first, 1 - first}) {
      const int64_t where = Below(rank + 2);
      if (where < static_cast<int64_t>(rank)) {
        sharding.dims[where].axes.push_back(axis);
      } else if (where == static_cast<int64_t>(rank) && may_be_partial) {
        sharding.partial.push_back(axis);
      }
    }
    return sharding;
  }

 private:
  const uint64_t key_;
  uint64_t drawn_ = 0;
};

// A device's share of x: shares along partial axes add up to x, and the first
// device along them holds all of it.
absl::StatusOr<Tensor> Share(const Tensor& x, const Placed& placed,
                             const DeviceMesh& mesh, int64_t device) {
  Placed whole = placed;
  whole.sharding.partial.clear();
  ASSIGN_OR_RETURN(Tensor tile, TileOf(x, whole, mesh, device));
  if (mesh.Index(device, placed.sharding.partial) == 0) return tile;
  return Tensor::Zeros(tile.type(), tile.dims());
}

// Resharding between random shardings, even or uneven, preserves the whole
// tensor.
TEST(ReshardTest, RandomPairsMoveTheWholeTensor) {
  for (uint64_t seed = 0; seed < 1500; ++seed) {
    Random random(seed);
    const std::vector<std::pair<int64_t, int64_t>> meshes = {
        {2, 2}, {2, 4}, {4, 2}, {3, 1}, {1, 2}, {3, 2}};
    const auto [a, b] = meshes[random.Below(meshes.size())];
    const DeviceMesh mesh = MeshXY(a, b);
    Shape shape;
    Dims dims;
    for (int64_t rank = 1 + random.Below(3); rank > 0; --rank) {
      dims.push_back(random.Below(2) ? 8 * (1 + random.Below(2))
                                     : random.Below(10));
      shape.push_back(dims.back());
    }
    const Sharding from = random.Next(shape.size(), true);
    const Sharding to = random.Next(shape.size(), false);
    SCOPED_TRACE(testing::Message()
                 << "seed " << seed << ", " << a << " x " << b << ", "
                 << ShapeToString(shape) << " from " << from.ToString(mesh)
                 << " to " << to.ToString(mesh));
    ASSERT_OK_AND_ASSIGN(const Program program,
                         Resharding(mesh, shape, from, to));
    const Tensor x = RandomTensor(dims, seed);
    const ValueType type{ElementType::kFloat32, shape};
    const Placed before{
        .type = type, .sharding = from, .role = 0, .device_order = {}};
    const Placed after{
        .type = type, .sharding = to, .role = 0, .device_order = {}};
    const int devices = static_cast<int>(mesh.NumDevices());
    std::vector<Tensor> tiles(devices);
    ASSERT_OK(RunOnDevices(devices, [&](World& world) -> absl::Status {
      TensorMap inputs;
      ASSIGN_OR_RETURN(inputs["x"], Share(x, before, mesh, world.rank()));
      MeshDevices groups(mesh, world);
      ASSIGN_OR_RETURN(
          std::vector<Tensor> y,
          Executor(program).Run(
              std::move(inputs), {},
              {.context = RunContext().With<DeviceGroups>(&groups)}));
      tiles[world.rank()] = std::move(y[0]);
      return absl::OkStatus();
    }));
    ASSERT_OK_AND_ASSIGN(const Tensor y, JoinTiles(tiles, dims, after, mesh));
    // x + 0 is x bit for bit, except for -0, which x does not contain.
    ASSERT_TRUE(TensorEqual(y, x)) << ProgramToText(program);
  }
}

}  // namespace
}  // namespace gshard
