#include "services/sharding/manual.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "services/graph/gradient.h"
#include "services/graph/text.h"
#include "services/partition/ops/collective_ops.h"
#include "services/sharding/annotation.h"
#include "tests/testing/partitioned_run.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

DeviceMesh Mesh(int64_t devices) {
  return *DeviceMesh::Create({{"d", devices, "device"}});
}

Sharding ByRow() { return {.dims = {{{0}, {}}, {}}, .partial = {}}; }

// y = relu(x w) in a manual region, split by row, and the gradient of
// sum(y * y) with respect to w.
Program Rows(const DeviceMesh& mesh) {
  Builder b("rows");
  const ValueId x = b.Input("x", {ElementType::kFloat32, {6, 4}});
  const ValueId w = b.Parameter("w", {4, 5});
  const ValueId local = EnterManual(b, x, ByRow(), mesh);
  const ValueId whole = EnterManual(b, w, Sharding::Replicated(2), mesh);
  const ValueId y = LeaveManual(b, b.Relu(b.Einsum("ab,bc->ac", local, whole)),
                                {6, 5}, ByRow(), mesh);
  b.Output("y", y);
  const auto gradients =
      AddGradients(b, b.ReduceSum(b.Multiply(y, y), {0, 1}), {w});
  EXPECT_OK(gradients.status());
  b.Output("dw", (*gradients)[0]);
  return *std::move(b).Finish();
}

TEST(ManualTest, ARegionWorksOnPartsAndItsGradientsAddUp) {
  const TensorMap inputs = {{"x", RandomTensor({6, 4}, 1)}};
  const TensorMap parameters = {{"w", RandomTensor({4, 5}, 2)}};
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> alone,
                       Executor(Rows(Mesh(1))).Run(inputs, parameters));
  for (const int64_t devices : {1, 2, 3}) {
    const DeviceMesh mesh = Mesh(devices);
    ASSERT_OK_AND_ASSIGN(const Partitioned partitioned,
                         Partition(Rows(mesh), mesh));
    ASSERT_OK_AND_ASSIGN(
        const std::vector<Tensor> joined,
        RunPartitioned(partitioned, mesh, inputs, parameters, alone));
    EXPECT_TRUE(TensorEqual(joined[0], alone[0]));
    // The products of six rows, summed in another order.
    EXPECT_TRUE(TensorNear(joined[1], alone[1], 1e-6f));
  }
}

TEST(ManualTest, ValuesInsideHaveTheShapeOfAPart) {
  Builder b("shapes");
  const ValueId x = b.Input("x", {ElementType::kFloat32, {7, 4}});
  const ValueId local = EnterManual(b, x, ByRow(), Mesh(3));
  EXPECT_EQ(b.type(local).shape, Shape({3, 4}));
  LeaveManual(b, local, {7, 4}, ByRow(), Mesh(3));
  EXPECT_OK(b.status());
}

TEST(ManualTest, RunsWholeOnOneDeviceOnly) {
  const TensorMap inputs = {{"x", RandomTensor({6, 4}, 1)}};
  const TensorMap parameters = {{"w", RandomTensor({4, 5}, 2)}};
  EXPECT_FALSE(Executor(Rows(Mesh(2))).Run(inputs, parameters).ok());
  EXPECT_THAT(Partition(Rows(Mesh(2)), Mesh(3)).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("the program was written for f32[3, 4]")));
}

TEST(ManualTest, RejectsShardingsOfAnotherRankAndAnnotationsInside) {
  Builder wrong("rank");
  EnterManual(wrong, wrong.Parameter("w", {4}), ByRow(), Mesh(2));
  EXPECT_THAT(wrong.status(), StatusIs(absl::StatusCode::kInvalidArgument,
                                       HasSubstr("must have the rank")));
  Builder b("annotated");
  const ValueId x = b.Parameter("x", {4, 4});
  const ValueId y = Split(b, b.Relu(EnterManual(b, x, ByRow(), Mesh(2))), 1, 2);
  b.Output("y", LeaveManual(b, y, {4, 4}, ByRow(), Mesh(2)));
  EXPECT_THAT(Partition(b.program(), Mesh(2)).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("belongs to a manual region")));
}

}  // namespace
}  // namespace gshard
