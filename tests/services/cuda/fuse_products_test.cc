#include "services/cuda/fuse_products.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "services/graph/builder.h"
#include "services/graph/op.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::ElementsAre;

class FuseProductsTest : public ::testing::Test {
 protected:
  void SetUp() override { RegisterFusedOps(); }

  ValueId Product() {
    const Dim R = Dim::Symbol("R"), E = Dim::Symbol("E");
    const ValueId rows = b_.Input("rows", {ElementType::kBFloat16, {R, 4}});
    const ValueId weights =
        b_.Parameter("weights", {E, 4, 6}, ElementType::kBFloat16);
    sizes_ = b_.Input("sizes", {ElementType::kInt32, {E}});
    return b_.RaggedDot(rows, weights, sizes_);
  }
  ValueId Bias(ValueId x) {
    return b_.RaggedBiasAdd(
        x, b_.Parameter("bias", {Dim::Symbol("E"), 6}, ElementType::kFloat32),
        sizes_);
  }

  // Operators of the fused program, except inputs and parameters.
  std::vector<std::string> Fused() {
    auto program = std::move(b_).Finish();
    CHECK(program.ok());
    fused_ = FuseProducts(*program);
    std::vector<std::string> ops;
    for (const Node& node : fused_.nodes) {
      if (node.op->name == "input" || node.op->name == "parameter") continue;
      ops.push_back(node.op->name);
      // Type inference gives the type that the program states.
      std::vector<ValueType> operands;
      for (const ValueId input : node.inputs) {
        operands.push_back(fused_.type(input));
      }
      const auto types = node.op->infer(operands, node.attributes);
      EXPECT_OK(types.status());
      if (!types.ok()) continue;
      EXPECT_EQ((*types)[0], fused_.type(node.outputs[0]));
    }
    return ops;
  }

  const Attributes& attributes() {
    return fused_.NodesOf("fused_ragged_dot")[0]->attributes;
  }

  Builder b_{"products"};
  ValueId sizes_ = kNoValue;
  Program fused_;
};

TEST_F(FuseProductsTest, TakesAllThatFollows) {
  b_.Output("y", b_.Relu(b_.Cast(Bias(Product()), ElementType::kBFloat16)));
  EXPECT_THAT(Fused(), ElementsAre("fused_ragged_dot"));
  EXPECT_EQ(StringAttribute(attributes(), "type"), "bf16");
  EXPECT_EQ(IntAttribute(attributes(), "relu"), 1);
  EXPECT_EQ(fused_.NodesOf("fused_ragged_dot")[0]->inputs.size(), 4);
}

TEST_F(FuseProductsTest, TakesWhatThereIs) {
  b_.Output("y", b_.Relu(Product()));
  EXPECT_THAT(Fused(), ElementsAre("fused_ragged_dot"));
  EXPECT_EQ(StringAttribute(attributes(), "type"), "f32");
  EXPECT_EQ(fused_.NodesOf("fused_ragged_dot")[0]->inputs.size(), 3);
}

TEST_F(FuseProductsTest, LeavesAProductAlone) {
  b_.Output("y", Product());
  EXPECT_THAT(Fused(), ElementsAre("ragged_dot"));
}

// The last fused result may have other uses, such as its gradient's.
TEST_F(FuseProductsTest, LastResultMayHaveMoreUses) {
  const ValueId y = b_.Relu(b_.Cast(Product(), ElementType::kBFloat16));
  b_.Output("y", y);
  b_.Output("wide", b_.Cast(y, ElementType::kFloat32));
  EXPECT_THAT(Fused(), ElementsAre("fused_ragged_dot", "cast"));
}

TEST_F(FuseProductsTest, EndsWhereAResultHasAnotherUse) {
  const ValueId sum = Bias(Product());
  b_.Output("sum", sum);
  b_.Output("y", b_.Relu(sum));
  EXPECT_THAT(Fused(), ElementsAre("fused_ragged_dot", "relu"));
  EXPECT_EQ(IntAttribute(attributes(), "relu"), 0);
}

TEST_F(FuseProductsTest, LeavesWhatIsUsedTwice) {
  const ValueId product = Product();
  b_.Output("more", b_.Scale(product, 2.0));
  b_.Output("y", b_.Relu(product));
  EXPECT_THAT(Fused(), ElementsAre("ragged_dot", "scale", "relu"));
}

TEST_F(FuseProductsTest, LeavesABiasOfOtherGroups) {
  const ValueId product = Product();
  sizes_ = b_.Input("others", {ElementType::kInt32, {Dim::Symbol("E")}});
  b_.Output("y", Bias(product));
  EXPECT_THAT(Fused(), ElementsAre("ragged_dot", "ragged_bias_add"));
}

TEST_F(FuseProductsTest, TakesNothingOutOfOrder) {
  b_.Output("y", b_.Cast(b_.Relu(Product()), ElementType::kBFloat16));
  EXPECT_THAT(Fused(), ElementsAre("fused_ragged_dot", "cast"));
}

}  // namespace
}  // namespace gshard
