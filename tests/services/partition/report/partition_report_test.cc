#include "services/partition/report/partition_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "services/graph/builder.h"
#include "services/ops/int8_panel.h"
#include "services/partition/ops/collective_ops.h"
#include "services/sharding/annotation.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

DeviceMesh ReportMesh(std::vector<MeshAxis> axes) {
  return *DeviceMesh::Create(std::move(axes));
}

const Dim B = Dim::Symbol("B");

ValueType Floats(Shape shape) {
  return {ElementType::kFloat32, std::move(shape)};
}

// x [B, 6] times w1 [6, 10], relu, times w2 [10, 4], with batch and hidden
// width split: the second product sums over the devices of "model".
struct TwoProducts {
  TwoProducts(int64_t batch, int64_t model)
      : mesh(ReportMesh({{"batch", batch, ""}, {"model", model, ""}})),
        sizes(mesh) {
    Builder b("two");
    const ValueId x = Split(b, b.Input("x", Floats({B, 6})), 0, "batch");
    const ValueId w1 = Split(b, b.Parameter("layer.w1", {6, 10}), 1, "model");
    const ValueId w2 = Split(b, b.Parameter("layer.w2", {10, 4}), 0, "model");
    const ValueId h = b.Relu(b.Einsum("bm,mh->bh", x, w1));
    b.Output("y", b.Einsum("bh,hm->bm", h, w2));
    program = *std::move(b).Finish();
    partitioned = *Partition(program, mesh);
    sizes.Set("B", 32);
  }

  PartitionReport Report() const {
    return *ReportPartition(partitioned, mesh, sizes);
  }

  DeviceMesh mesh;
  SymbolSizes sizes;
  Program program;
  Partitioned partitioned;
};

TEST(PartitionReportTest, CountsParametersWholeAndOnADevice) {
  const PartitionReport report = TwoProducts(2, 4).Report();
  ASSERT_THAT(report.roles, SizeIs(1));
  EXPECT_EQ(report.roles[0].devices, 8);
  EXPECT_EQ(report.roles[0].parameters, 60 + 40);
  // Ten columns in four parts: 3 per device.
  EXPECT_EQ(report.roles[0].parameters_per_device, 6 * 3 + 3 * 4);
  EXPECT_EQ(report.roles[0].memory.parameters, 4 * 30);
  EXPECT_EQ(report.TotalParameters(), 100);
}

TEST(PartitionReportTest, AnAllReduceSendsTwiceAllButOneShare) {
  const TwoProducts two(2, 4);
  const PartitionReport report = two.Report();
  ASSERT_THAT(report.communication, SizeIs(1));
  const Communication& sum = report.communication[0];
  EXPECT_EQ(sum.kind, "all_reduce");
  EXPECT_EQ(sum.axes, "model");
  EXPECT_EQ(sum.group, 4);
  EXPECT_EQ(sum.operand.ToString(), "f32[B_by_batch, 4]");
  EXPECT_EQ(sum.place.name, "layer");
  EXPECT_FALSE(sum.place.backward);
  // 16 rows of 4 floats.
  EXPECT_EQ(sum.bytes, 2 * (16 * 4 * 4) * 3 / 4);
}

TEST(PartitionReportTest, PeakIsTheWidestMomentOfTheProgram) {
  // 16 rows per device, hidden width 5. x [16, 6] dies after the product; the
  // product and relu are [16, 5], the result is [16, 4].
  const PartitionReport report = TwoProducts(2, 2).Report();
  const MemoryUse& memory = report.roles[0].memory;
  EXPECT_EQ(memory.gradients, 0);
  EXPECT_EQ(memory.activations, 4 * 16 * (6 + 5));
  EXPECT_EQ(memory.peak, memory.activations + memory.parameters);
}

TEST(PartitionReportTest, AReshapeSharesItsBuffer) {
  Builder b("reshape");
  const ValueId x = b.Input("x", Floats({4, 6}));
  const ValueId flat = b.Reshape(x, {24});
  b.Output("y", b.Relu(flat));
  b.Output("x", x);
  const DeviceMesh mesh = ReportMesh({{"d", 1, ""}});
  const Partitioned partitioned = *Partition(*std::move(b).Finish(), mesh);
  const MemoryUse memory =
      (*MemoryOfRoles(partitioned, mesh, SymbolSizes(mesh)))[0];
  EXPECT_EQ(memory.activations, 4 * 24 * 2);
}

TEST(PartitionReportTest, GradientsAreCountedApart) {
  Builder b("gradients");
  const ValueId x = b.Input("x", Floats({8, 6}));
  const ValueId w = b.Parameter("w", {8, 6});
  const ValueId product = b.Multiply(x, w);
  b.Output("loss", b.Relu(product));
  b.Output("gradient/w", b.Scale(product, 2.0));
  const DeviceMesh mesh = ReportMesh({{"d", 1, ""}});
  const Partitioned partitioned = *Partition(*std::move(b).Finish(), mesh);
  const MemoryUse memory =
      (*MemoryOfRoles(partitioned, mesh, SymbolSizes(mesh)))[0];
  const int64_t bytes = 4 * 8 * 6;
  EXPECT_EQ(memory.parameters, bytes);
  EXPECT_EQ(memory.gradients, bytes);
  // First x and the product are live, then the product and the loss.
  EXPECT_EQ(memory.activations, 2 * bytes);
  EXPECT_EQ(memory.peak, 4 * bytes);
}

// What is trained is kept as float32 beside its rounded copy; int8 has panels.
TEST(PartitionReportTest, CountsRoundedParameters) {
  const auto parameters = [](ElementType type, bool trains) {
    Builder b("rounded");
    const ValueId x = b.Input("x", Floats({8, 6}));
    const ValueId w = b.Parameter("w", {6, 20}, type);
    b.Output("y",
             b.Einsum("bi,io->bo",
                      type == ElementType::kBFloat16 ? b.Cast(x, type) : x, w));
    if (trains) b.Output("gradient/w", b.Relu(x));
    const DeviceMesh mesh = ReportMesh({{"d", 1, ""}});
    const Partitioned partitioned = *Partition(*std::move(b).Finish(), mesh);
    return (*MemoryOfRoles(partitioned, mesh, SymbolSizes(mesh)))[0].parameters;
  };
  EXPECT_EQ(parameters(ElementType::kFloat32, false), 6 * 20 * 4);
  EXPECT_EQ(parameters(ElementType::kBFloat16, false), 6 * 20 * 2);
  EXPECT_EQ(parameters(ElementType::kBFloat16, true), 6 * 20 * (2 + 4));
  EXPECT_EQ(parameters(ElementType::kInt8, false), Int8MatrixBytes(6, 20));
}

TEST(PartitionReportTest, NamesASymbolWithoutSize) {
  TwoProducts two(2, 2);
  two.sizes = SymbolSizes(two.mesh);
  EXPECT_THAT(ReportPartition(two.partitioned, two.mesh, two.sizes),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("B")));
}

TEST(PartitionReportTest, SizesSaturate) {
  TwoProducts two(2, 2);
  two.sizes.Set("B", INT64_MAX);
  const PartitionReport report = two.Report();
  EXPECT_EQ(report.roles[0].memory.peak, INT64_MAX);
  EXPECT_EQ(report.roles[0].memory.activations, INT64_MAX);
  EXPECT_EQ(SumByKind(report.communication)[0].bytes, INT64_MAX);
}

// Token rows [R, 6] go from routers to experts on workers, and back.
struct TwoRoles {
  TwoRoles(int64_t routers, int64_t workers)
      : mesh(ReportMesh(
            {{"router", routers, "router"}, {"expert", workers, "worker"}})),
        sizes(mesh) {
    RegisterCollectiveOps();
    Builder b("roles");
    const Dim R_of = Dim::Symbol("R_of_router");
    const Dim R_by = Dim::Symbol("R_by_expert");
    const ValueId rows = b.Input("rows", Floats({R_of, 6}));
    const ValueId counts = b.Input("counts", {ElementType::kInt32, {Dim(8)}});
    const std::vector<ValueId> there =
        b.AddNode("send_rows", {rows, counts},
                  {{"axes", std::string("expert")},
                   {"rows", Shape{R_by}},
                   {"experts", Shape{Dim(2)}}});
    const ValueId w = b.Parameter("moe.wi", {2, 6, 6});
    const ValueId y = b.RaggedDot(there[0], w, there[1]);
    const ValueId key = b.AddOne("send_whole", {counts}, {});
    const ValueId back =
        b.AddOne("return_rows", {y, counts},
                 {{"rows", Shape{R_of}}, {"sum_over", std::string()}});
    b.Output("y", back);
    b.Output("key", key);
    partitioned.program = *std::move(b).Finish();
    const Program& program = partitioned.program;
    partitioned.roles.assign(program.values.size(), 0);
    for (const ValueId value : {there[0], there[1], w, y, key}) {
      partitioned.roles[value] = 1;
    }
    partitioned.wholes.assign(program.values.size(), kNoValue);
    partitioned.shardings.resize(program.values.size());
    sizes.Set("R", 40);
  }

  DeviceMesh mesh;
  SymbolSizes sizes;
  Partitioned partitioned;
};

TEST(PartitionReportTest, CrossingsSendTheRowsOfTheirRole) {
  const TwoRoles two(5, 4);
  const auto all = ListCommunication(two.partitioned, two.mesh, two.sizes);
  ASSERT_OK(all.status());
  ASSERT_THAT(*all, SizeIs(3));
  const Communication& sent = (*all)[0];
  EXPECT_EQ(sent.kind, "send_rows");
  EXPECT_EQ(sent.role, 0);
  EXPECT_EQ(sent.group, 4);
  EXPECT_EQ(sent.bytes, 40 / 5 * 6 * 4);
  const Communication& whole = (*all)[1];
  EXPECT_EQ(whole.kind, "send_whole");
  EXPECT_EQ(whole.bytes, 8 * 4 * 4);  // to four workers
  const Communication& back = (*all)[2];
  EXPECT_EQ(back.kind, "return_rows");
  EXPECT_EQ(back.role, 1);
  EXPECT_EQ(back.group, 5);
  EXPECT_EQ(back.place.name, "moe");
  EXPECT_EQ(back.bytes, 40 / 4 * 6 * 4);
}

TEST(PartitionReportTest, ARoleHasItsOwnMemoryAndText) {
  const TwoRoles two(5, 4);
  const PartitionReport report =
      *ReportPartition(two.partitioned, two.mesh, two.sizes);
  ASSERT_THAT(report.roles, SizeIs(2));
  EXPECT_EQ(report.roles[0].nodes, 3);  // two inputs and return_rows
  EXPECT_EQ(report.roles[1].nodes, 4);
  EXPECT_EQ(report.roles[1].memory.parameters, 2 * 6 * 6 * 4);
  // On a worker: 10 rows in and out, and two group sizes; the key arrives after
  // rows and sizes are freed.
  EXPECT_EQ(report.roles[1].memory.activations, 2 * 10 * 6 * 4 + 2 * 4);
  EXPECT_EQ(report.roles[0].memory.parameters, 0);

  const std::string router = RoleToText(two.partitioned, 0);
  EXPECT_THAT(router, HasSubstr("send_rows"));
  EXPECT_THAT(router, HasSubstr("return_rows"));
  EXPECT_THAT(router, Not(HasSubstr("ragged_dot")));
  EXPECT_THAT(router, HasSubstr("output \"y\""));
  const std::string worker = RoleToText(two.partitioned, 1);
  EXPECT_THAT(worker, HasSubstr("ragged_dot"));
  EXPECT_THAT(worker, Not(HasSubstr("input(")));
  EXPECT_THAT(worker, Not(HasSubstr("output \"y\"")));
}

}  // namespace
}  // namespace gshard
