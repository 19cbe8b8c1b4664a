// Tests the MoE layer on a mesh of devices against the unpartitioned layer.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/graph/text.h"
#include "services/partition/ops/collective_ops.h"
#include "tests/services/moe/partition_layer.h"
#include "tests/testing/partitioned_run.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

// The number of nodes of each collective.
std::map<std::string, int> Collectives(const Program& program) {
  std::map<std::string, int> counts;
  for (const Node& node : program.nodes) {
    if (IsCollective(node.op->name)) ++counts[node.op->name];
  }
  return counts;
}

DeviceMesh Mesh(std::vector<MeshAxis> axes) {
  return *DeviceMesh::Create(std::move(axes));
}

Partitioned PartitionLayer(const MoeLayer& layer, const DeviceMesh& mesh) {
  auto program = MoeLayerProgram(layer);
  EXPECT_OK(program.status());
  auto partitioned = Partition(*program, mesh);
  EXPECT_OK(partitioned.status());
  return partitioned.ok() ? *std::move(partitioned) : Partitioned();
}

// Compares all outputs of `partitioned` with those of the whole layer.
void ExpectSame(const MoeLayer& layer, const Partitioned& partitioned,
                const DeviceMesh& mesh, const TensorMap& inputs) {
  const TensorMap parameters = MoeLayerParameters(layer);
  ASSERT_OK_AND_ASSIGN(const Program program, MoeLayerProgram(layer));
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> whole,
                       Executor(program).Run(inputs, parameters));
  ASSERT_OK_AND_ASSIGN(
      const std::vector<Tensor> joined,
      RunPartitioned(partitioned, mesh, inputs, parameters, whole));
  for (size_t i = 0; i < whole.size(); ++i) {
    const std::string& name = program.outputs[i].first;
    if (whole[i].type() == ElementType::kInt32) {
      EXPECT_TRUE(TensorEqual(joined[i], whole[i])) << name;
    } else {
      EXPECT_TRUE(TensorNear(joined[i], whole[i], 1e-5f)) << name;
    }
  }
}

// Returns the partitioned program.
Partitioned CheckLayer(const MoeLayer& layer, const DeviceMesh& mesh) {
  Partitioned partitioned = PartitionLayer(layer, mesh);
  ExpectSame(layer, partitioned, mesh, MoeLayerInputs(layer));
  return partitioned;
}

MoeLayer OnOneAxis() {
  MoeLayer layer;
  layer.tokens = layer.experts = "d";
  return layer;
}

// Rows are exchanged twice forward and twice backward. Sums are only those of
// the gate weights' gradient, and the small ones of losses and counts.
TEST(MoePartitionTest, TwoAllToAllsForwardAndTwoBackward) {
  for (const int64_t devices : {2, 3, 4, 8, 64}) {
    MoeLayer layer = OnOneAxis();
    layer.T = 64 * 3 * 4;
    const Partitioned partitioned =
        PartitionLayer(layer, Mesh({{"d", devices, ""}}));
    // balance loss, z-loss, counts of valid tokens, kept, overflow, gate
    EXPECT_THAT(Collectives(partitioned.program),
                UnorderedElementsAre(Pair("ragged_all_to_all", 2),
                                     Pair("ragged_all_to_all_back", 2),
                                     Pair("all_reduce", 6)))
        << devices << "\n"
        << ProgramToText(partitioned.program);
  }
}

TEST(MoePartitionTest, EqualsTheLayerInOnePiece) {
  for (const int64_t devices : {1, 2, 3, 4, 8}) {
    for (const bool symbolic : {false, true}) {
      SCOPED_TRACE(absl::StrCat(devices, " devices, symbolic ", symbolic));
      MoeLayer layer = OnOneAxis();
      layer.T = 24 * 8;
      layer.symbolic_tokens = symbolic;
      CheckLayer(layer, Mesh({{"d", devices, ""}}));
    }
  }
}

TEST(MoePartitionTest, UnevenExperts) {
  for (const int64_t devices : {2, 3, 4, 8}) {
    for (const int64_t experts : {5, 7, 10}) {
      SCOPED_TRACE(absl::StrCat(devices, " devices, experts ", experts));
      MoeLayer layer = OnOneAxis();
      layer.T = 24 * 4;
      layer.E = experts;
      layer.bias = true;
      CheckLayer(layer, Mesh({{"d", devices, ""}}));
    }
  }
}

// All gating options give the results of the whole layer: group borders and
// random numbers are those of the whole batch.
TEST(MoePartitionTest, AllGatingOptions) {
  for (const SecondExpertPolicy second :
       {SecondExpertPolicy::kRandom, SecondExpertPolicy::kAll,
        SecondExpertPolicy::kSampling}) {
    for (const Normalize normalize :
         {Normalize::kBeforeCapacity, Normalize::kAfterCapacity,
          Normalize::kNever}) {
      for (const SlotOrder order :
           {SlotOrder::kToken, SlotOrder::kBatchPriority, SlotOrder::kPosition,
            SlotOrder::kProbability}) {
        MoeLayer layer = OnOneAxis();
        layer.T = 48;
        layer.gating.second_expert = second;
        layer.gating.normalize = normalize;
        layer.gating.order = order;
        layer.dropout = 0.2;
        CheckLayer(layer, Mesh({{"d", 3, ""}}));
      }
    }
  }
}

TEST(MoePartitionTest, NodesDoNotDependOnTheNumberOfDevices) {
  MoeLayer layer = OnOneAxis();
  layer.T = 64 * 3 * 4;
  layer.E = 64 * 3;
  const auto nodes = [&](int64_t devices) {
    return PartitionLayer(layer, Mesh({{"d", devices, ""}}))
        .program.nodes.size();
  };
  for (const int64_t devices : {3, 4, 8, 64})
    EXPECT_EQ(nodes(devices), nodes(2));
  // The number of experts is divisible neither by 3 nor by 64.
  layer.E = 100;
  EXPECT_EQ(nodes(64), nodes(3));
}

// A batch that is one group, or whose groups a split would cut, is gated whole.
TEST(MoePartitionTest, GroupsAreNotCut) {
  for (const int64_t group_size : {0, 6}) {
    MoeLayer layer = OnOneAxis();
    layer.T = 32;
    layer.gating.group_size = group_size;
    const Partitioned partitioned = CheckLayer(layer, Mesh({{"d", 4, ""}}));
    EXPECT_EQ(Collectives(partitioned.program)["ragged_all_to_all"], 0);
  }
  // A symbolic size is checked when the program runs.
  MoeLayer layer = OnOneAxis();
  layer.T = 32;
  layer.gating.group_size = 6;
  layer.symbolic_tokens = true;
  const DeviceMesh mesh = Mesh({{"d", 4, ""}});
  const TensorMap inputs = MoeLayerInputs(layer);
  const TensorMap parameters = MoeLayerParameters(layer);
  const std::vector<Tensor> whole =
      *Executor(*MoeLayerProgram(layer)).Run(inputs, parameters);
  EXPECT_THAT(RunPartitioned(PartitionLayer(layer, mesh), mesh, inputs,
                             parameters, whole),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       ::testing::HasSubstr("must be a multiple of 6, got 8")));
}

// The layer equals the whole one if some or all devices have only padding.
TEST(MoePartitionTest, PaddingOnly) {
  MoeLayer layer = OnOneAxis();
  layer.T = 32;
  const DeviceMesh mesh = Mesh({{"d", 4, ""}});
  const Partitioned partitioned = PartitionLayer(layer, mesh);
  for (const int64_t valid : {0, 3}) {
    TensorMap inputs = MoeLayerInputs(layer);
    Tensor& mask = inputs["valid"];
    for (int64_t t = 0; t < layer.T; ++t) mask.i32()[t] = t < valid;
    ExpectSame(layer, partitioned, mesh, inputs);
  }
}

// The layer equals the whole one with tokens and experts on separate axes.
TEST(MoePartitionTest, TokensAndExpertsOnTwoAxes) {
  for (const auto& [router, expert] : std::vector<std::pair<int64_t, int64_t>>{
           {2, 2}, {1, 4}, {4, 1}, {2, 3}, {3, 2}}) {
    SCOPED_TRACE(absl::StrCat(router, " by ", expert));
    MoeLayer layer;
    layer.tokens = "router";
    layer.experts = "expert";
    layer.bias = true;
    CheckLayer(layer, Mesh({{"router", router, ""}, {"expert", expert, ""}}));
  }
}

// The layer equals the whole one with experts' weights split along inner width.
TEST(MoePartitionTest, ExpertsAreSliced) {
  for (const int64_t slices : {1, 2, 4}) {
    for (const bool bias : {false, true}) {
      SCOPED_TRACE(absl::StrCat(slices, " slices, bias ", bias));
      MoeLayer layer = OnOneAxis();
      layer.width = "model";
      layer.bias = bias;
      layer.H = 10;  // uneven at 4
      const Partitioned partitioned =
          CheckLayer(layer, Mesh({{"d", 2, ""}, {"model", slices, ""}}));
      EXPECT_EQ(Collectives(partitioned.program)["ragged_all_to_all"], 2);
    }
  }
}

// The layer equals the whole one with rows split along the model's width.
TEST(MoePartitionTest, RowsAreSliced) {
  for (const int64_t slices : {2, 3, 4}) {
    for (const int64_t inner : {1, 2}) {
      SCOPED_TRACE(absl::StrCat(slices, " slices, inner ", inner));
      MoeLayer layer = OnOneAxis();
      layer.outer_width = "model";
      layer.width = "inner";
      layer.bias = true;
      CheckLayer(
          layer,
          Mesh({{"d", 2, ""}, {"model", slices, ""}, {"inner", inner, ""}}));
    }
  }
}

// Large weights are not gathered; partial products are summed instead.
TEST(MoePartitionTest, LargeExpertsStayInSlices) {
  MoeLayer layer = OnOneAxis();
  layer.width = "model";
  layer.T = 4096;
  layer.M = 1024;
  layer.H = 8192;
  layer.E = 512;
  const Partitioned partitioned =
      PartitionLayer(layer, Mesh({{"d", 64, ""}, {"model", 4, ""}}));
  std::map<std::string, int> collectives = Collectives(partitioned.program);
  EXPECT_EQ(collectives["ragged_all_to_all"], 2);
  EXPECT_EQ(collectives["ragged_all_to_all_back"], 2);
  EXPECT_EQ(collectives["all_gather"], 0);
  for (const Node* node : partitioned.program.NodesOf("ragged_dot")) {
    EXPECT_EQ(ShapeSize(partitioned.program.type(node->inputs[1]).shape),
              Dim(8 * 1024 * 2048));
  }
}

}  // namespace
}  // namespace gshard
