#include "services/partition/partitioner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "services/graph/gradient.h"
#include "services/graph/text.h"
#include "services/partition/ops/collective_ops.h"
#include "services/sharding/annotation.h"
#include "tests/testing/partitioned_run.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

DeviceMesh Mesh(std::vector<MeshAxis> axes) {
  return *DeviceMesh::Create(std::move(axes));
}

std::vector<std::string> Collectives(const Program& program) {
  std::vector<std::string> names;
  for (const Node& node : program.nodes) {
    if (IsCollective(node.op->name)) names.push_back(node.op->name);
  }
  return names;
}

// Partitions the program of `build` over `mesh`, runs it, and compares with the
// whole. Returns its collectives.
template <typename Function>
std::vector<std::string> CheckProgram(const DeviceMesh& mesh,
                                      const TensorMap& inputs, Function build) {
  Builder b("program");
  build(b);
  absl::StatusOr<Program> program = std::move(b).Finish();
  EXPECT_OK(program.status());
  if (!program.ok()) return {};
  const std::vector<Tensor> whole = *Executor(*program).Run(inputs, {});
  const absl::StatusOr<Partitioned> partitioned = Partition(*program, mesh);
  EXPECT_OK(partitioned.status());
  if (!partitioned.ok()) return {};
  const auto joined = RunPartitioned(*partitioned, mesh, inputs, {}, whole);
  EXPECT_OK(joined.status());
  if (!joined.ok()) return {};
  for (size_t i = 0; i < whole.size(); ++i) {
    EXPECT_TRUE(TensorNear((*joined)[i], whole[i], 1e-5f))
        << ProgramToText(partitioned->program);
  }
  return Collectives(partitioned->program);
}

ValueId FloatInput(Builder& b, const char* name, Shape shape) {
  return b.Input(name, {ElementType::kFloat32, std::move(shape)});
}

// x [6, 10] times w [10, 7].
template <typename Function>
std::vector<std::string> CheckMatmul(int64_t devices, Function annotate) {
  const TensorMap inputs = {{"x", RandomTensor({6, 10}, 1)},
                            {"w", RandomTensor({10, 7}, 2)}};
  return CheckProgram(Mesh({{"d", devices, ""}}), inputs, [&](Builder& b) {
    const ValueId x = FloatInput(b, "x", {6, 10});
    const ValueId w = FloatInput(b, "w", {10, 7});
    const ValueId y = b.Einsum("ab,bc->ac", x, w);
    annotate(b, x, w, y);
    b.Output("y", y);
  });
}

// The rows of the paper's table 4 (arXiv 2006.16668), at sizes that divide
// evenly and sizes that do not.

TEST(OperatorTableTest, AddNeedsNothing) {
  for (const int64_t devices : {2, 3, 4, 8}) {
    EXPECT_THAT(
        CheckProgram(Mesh({{"d", devices, ""}}),
                     {{"x", RandomTensor({6}, 1)}, {"y", RandomTensor({6}, 2)}},
                     [](Builder& b) {
                       const ValueId x = FloatInput(b, "x", {6});
                       b.Output("z", b.Add(Split(b, x, 0, "d"),
                                           FloatInput(b, "y", {6})));
                     }),
        IsEmpty());
  }
}

TEST(OperatorTableTest, ReduceOfAnotherDimensionNeedsNothing) {
  for (const int64_t devices : {2, 3, 4, 8}) {
    EXPECT_THAT(CheckProgram(Mesh({{"d", devices, ""}}),
                             {{"x", RandomTensor({6, 5}, 1)}},
                             [](Builder& b) {
                               const ValueId x = FloatInput(b, "x", {6, 5});
                               b.Output("y",
                                        b.ReduceSum(Split(b, x, 0, "d"), {1}));
                             }),
                IsEmpty());
  }
}

TEST(OperatorTableTest, ReduceOfTheSplitDimensionIsAllReduced) {
  for (const int64_t devices : {2, 3, 4, 8}) {
    EXPECT_THAT(CheckProgram(Mesh({{"d", devices, ""}}),
                             {{"x", RandomTensor({6, 5}, 1)}},
                             [](Builder& b) {
                               const ValueId x = FloatInput(b, "x", {6, 5});
                               b.Output("y",
                                        b.ReduceSum(Split(b, x, 0, "d"), {0}));
                             }),
                ElementsAre("all_reduce"));
  }
}

// The dispatch of Algorithm 2 with one-hot masks, as in the paper, is one
// all_to_all.
TEST(OperatorTableTest, DispatchEinsumIsOneAllToAll) {
  for (const int64_t devices : {2, 3, 4, 8}) {
    const int64_t G = 2 * devices, S = 3, E = devices, C = 2, M = 5;
    EXPECT_THAT(
        CheckProgram(Mesh({{"d", devices, ""}}),
                     {{"mask", RandomTensor({G, S, E, C}, 1)},
                      {"x", RandomTensor({G, S, M}, 2)}},
                     [&](Builder& b) {
                       const ValueId mask = FloatInput(b, "mask", {G, S, E, C});
                       Split(b, mask, 0, "d");
                       const ValueId x = FloatInput(b, "x", {G, S, M});
                       const ValueId y = b.Einsum("gsec,gsm->egcm", mask,
                                                  Split(b, x, 0, "d"));
                       b.Output("y", Split(b, y, 0, "d"));
                     }),
        ElementsAre("all_to_all"));
  }
}

TEST(OperatorTableTest, MatmulSplitOnARow) {
  for (const int64_t devices : {2, 3, 4, 8}) {
    EXPECT_THAT(CheckMatmul(devices, [](Builder& b, ValueId x, ValueId,
                                        ValueId) { Split(b, x, 0, "d"); }),
                IsEmpty());
  }
}

TEST(OperatorTableTest, MatmulSplitOnTheSumIsAllReduced) {
  for (const int64_t devices : {2, 3, 4, 8}) {
    EXPECT_THAT(CheckMatmul(devices,
                            [](Builder& b, ValueId x, ValueId w, ValueId) {
                              Split(b, x, 1, "d");
                              Split(b, w, 0, "d");
                            }),
                ElementsAre("all_reduce"));
  }
}

TEST(OperatorTableTest, MatmulSplitOnRowAndSumGathersOne) {
  for (const int64_t devices : {2, 3, 4, 8}) {
    EXPECT_THAT(CheckMatmul(devices,
                            [](Builder& b, ValueId x, ValueId w, ValueId) {
                              Split(b, x, 0, "d");
                              Split(b, w, 0, "d");
                            }),
                ElementsAre("all_gather"));
  }
}

TEST(OperatorTableTest, MatmulSplitOnRowAndColumnGathersOne) {
  for (const int64_t devices : {2, 3, 4, 8}) {
    EXPECT_THAT(CheckMatmul(devices,
                            [](Builder& b, ValueId x, ValueId w, ValueId) {
                              Split(b, x, 0, "d");
                              Split(b, w, 1, "d");
                            }),
                ElementsAre("all_gather"));
  }
}

TEST(PartitionerTest, ASumThatIsWantedInPartsIsScattered) {
  for (const int64_t devices : {2, 3, 4, 8}) {
    EXPECT_THAT(CheckMatmul(devices,
                            [](Builder& b, ValueId x, ValueId w, ValueId y) {
                              Split(b, x, 1, "d");
                              Split(b, w, 0, "d");
                              Split(b, y, 0, "d");
                            }),
                ElementsAre("reduce_scatter"));
  }
}

// A product split on one axis and replicated along the other, or split on both,
// needs no communication.
TEST(PartitionerTest, PartialTilingAndTwoAxes) {
  const DeviceMesh mesh = Mesh({{"a", 2, ""}, {"b", 4, ""}});
  const TensorMap inputs = {{"x", RandomTensor({7, 9, 5}, 1)},
                            {"w", RandomTensor({5, 6}, 2)}};
  EXPECT_THAT(CheckProgram(mesh, inputs,
                           [](Builder& b) {
                             const ValueId x = FloatInput(b, "x", {7, 9, 5});
                             const ValueId w = FloatInput(b, "w", {5, 6});
                             Split(b, x, 0, "a");
                             Split(b, w, 1, "b");
                             b.Output("y", b.Einsum("abc,cd->abd", x, w));
                           }),
              IsEmpty());
  EXPECT_THAT(CheckProgram(mesh, inputs,
                           [](Builder& b) {
                             const ValueId x = FloatInput(b, "x", {7, 9, 5});
                             Split(b, x, 1, "a");
                             Split(b, x, 1, "b");
                             const ValueId w = FloatInput(b, "w", {5, 6});
                             b.Output("y", b.Einsum("abc,cd->abd", x, w));
                           }),
              IsEmpty());
}

// A device assignment places tiles as in figure 10 of the paper for a 2 x 4
// mesh; later operators use the mesh's own order.
TEST(PartitionerTest, ADeviceAssignmentSaysWhereTilesAre) {
  const DeviceMesh mesh = Mesh({{"a", 2, ""}, {"b", 4, ""}});
  const DeviceAssignment assignment = {.dims = {1, 2, 4},
                                       .devices = {0, 1, 5, 4, 2, 3, 7, 6}};
  Builder b("program");
  const ValueId x = FloatInput(b, "x", {3, 16, 64});
  b.Output("y", b.Relu(Shard(b, x, assignment)));
  ASSERT_OK_AND_ASSIGN(const Program program, std::move(b).Finish());
  ASSERT_OK_AND_ASSIGN(const Partitioned partitioned, Partition(program, mesh));
  const Placed& placed = partitioned.inputs.at("x");
  const Tensor whole = RandomTensor({3, 16, 64}, 1);
  ASSERT_OK_AND_ASSIGN(const Tensor tile, TileOf(whole, placed, mesh, 5));
  EXPECT_EQ(tile.dims(), (Dims{3, 8, 16}));
  // Device 5 has the third tile: rows 0 to 8, columns 32 to 48.
  EXPECT_EQ(tile.f32()[0], whole.f32()[32]);
  const TensorMap inputs = {{"x", whole}};
  const std::vector<Tensor> expected = *Executor(program).Run(inputs, {});
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> joined,
                       RunPartitioned(partitioned, mesh, inputs, {}, expected));
  EXPECT_TRUE(TensorEqual(joined[0], expected[0]));
}

// The partitioned program is the same for any number of devices.
TEST(PartitionerTest, TheProgramDoesNotGrowWithTheDevices) {
  std::vector<std::vector<std::string>> ops;
  for (const int64_t devices : {2, 16, 2048}) {
    Builder b("program");
    const ValueId x = FloatInput(b, "x", {4096, 4096});
    const ValueId w = b.Parameter("w", {4096, 4096});
    Split(b, x, 0, "d");
    Split(b, w, 0, "d");
    const ValueId y = b.Relu(b.Einsum("ab,bc->ac", x, w));
    const ValueId loss = b.ReduceSum(y, {0, 1});
    ASSERT_OK_AND_ASSIGN(const std::vector<ValueId> gradients,
                         AddGradients(b, loss, {w}));
    b.Output("gradient/w", gradients[0]);
    ASSERT_OK_AND_ASSIGN(const Program program, std::move(b).Finish());
    ASSERT_OK_AND_ASSIGN(const Partitioned partitioned,
                         Partition(program, Mesh({{"d", devices, ""}})));
    std::vector<std::string> names;
    for (const Node& node : partitioned.program.nodes) {
      names.push_back(node.op->name);
    }
    ops.push_back(names);
  }
  EXPECT_EQ(ops[0], ops[1]);
  EXPECT_EQ(ops[0], ops[2]);
}

// On one device, partitioning only removes annotations.
TEST(PartitionerTest, OneDeviceRunsTheProgramItself) {
  Builder b("program");
  const ValueId x = FloatInput(b, "x", {6, 10});
  const ValueId w = b.Parameter("w", {10, 7});
  b.Output("y", b.Einsum("ab,bc->ac", Split(b, x, 1, "d"), w));
  ASSERT_OK_AND_ASSIGN(const Program program, std::move(b).Finish());
  ASSERT_OK_AND_ASSIGN(const Partitioned partitioned,
                       Partition(program, Mesh({{"d", 1, ""}})));
  Program unannotated = program;
  for (Value& value : unannotated.values) value.sharding.clear();
  EXPECT_EQ(ProgramToText(partitioned.program), ProgramToText(unannotated));
}

TEST(PartitionerTest, WrongUseNamesTensorAndAnnotation) {
  Builder b("program");
  const ValueId x = FloatInput(b, "x", {6, 10});
  b.Output("y", b.Relu(Split(b, x, 1, "model")));
  ASSERT_OK_AND_ASSIGN(const Program program, std::move(b).Finish());
  EXPECT_THAT(Partition(program, Mesh({{"d", 2, ""}})).status(),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("f32[6, 10]"),
                             HasSubstr("split(1, model)"), HasSubstr("'d'"))));
}

}  // namespace
}  // namespace gshard
