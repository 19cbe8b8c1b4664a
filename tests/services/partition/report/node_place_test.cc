#include "services/partition/report/node_place.h"

#include <gtest/gtest.h>

#include "services/graph/builder.h"

namespace gshard {
namespace {

// Two products with a bypass around the second, and something like their
// gradients.
class NodePlaceTest : public ::testing::Test {
 protected:
  NodePlaceTest() {
    Builder b("places");
    x_ = b.Input("x", {ElementType::kFloat32, {4, 6}});
    const ValueId w1 = b.Parameter("first.w", {6, 6});
    h_ = b.Relu(b.Einsum("ab,bc->ac", x_, w1));
    const ValueId w2 = b.Parameter("second.w", {6, 6});
    y_ = b.Add(b.Einsum("ab,bc->ac", h_, w2), h_);
    b.Output("y", y_);
    dh_ = b.Einsum("ac,bc->ab", b.Scale(y_, 2.0), w2);
    dx_ = b.Multiply(dh_, h_);
    joined_ = b.Add(dh_, dx_);
    const ValueId dw1 = b.Einsum("ab,ac->bc", x_, joined_);
    dw1_ = dw1;
    b.Output("gradient/first.w", dw1);
    program_ = *std::move(b).Finish();
    places_ = PlacesOf(program_);
  }

  const NodePlace& At(ValueId value) const {
    return places_[program_.values[value].producer];
  }

  Program program_;
  std::vector<NodePlace> places_;
  ValueId x_, h_, y_, dh_, dx_, joined_, dw1_;
};

TEST_F(NodePlaceTest, ForwardNodesStandAtTheLastOfTheirOperands) {
  EXPECT_EQ(At(x_).name, "");
  EXPECT_EQ(At(h_).name, "first");
  EXPECT_EQ(At(y_).name, "second");
  EXPECT_FALSE(At(y_).backward);
}

TEST_F(NodePlaceTest, BackwardNodesStandWhereForwardOnesLeftTheirOperands) {
  EXPECT_TRUE(At(dh_).backward);
  EXPECT_EQ(At(dh_).name, "second");
  EXPECT_EQ(At(dx_).name, "first");
  EXPECT_EQ(At(joined_).name, "first");
  EXPECT_TRUE(At(joined_).backward);
}

TEST_F(NodePlaceTest, GradientsHaveTheNameOfTheirParameter) {
  EXPECT_EQ(At(dw1_).name, "first.w");
  EXPECT_TRUE(At(dw1_).backward);
}

}  // namespace
}  // namespace gshard
