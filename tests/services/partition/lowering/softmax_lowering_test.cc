#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/services/partition/lowering/partitioned_case.h"
#include "tests/testing/builder_ops.h"

namespace gshard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

template <typename Function>
Builder SoftmaxCase(Shape shape, bool gradient, Function annotate) {
  Builder b("softmax");
  const ValueId x = b.Input("x", {ElementType::kFloat32, std::move(shape)});
  annotate(b, x);
  const ValueId y = Softmax(b, x);
  b.Output("y", y);
  if (gradient) AddWeightedGradients(b, y, {x});
  return b;
}

TEST(SoftmaxLoweringTest, ASplitRowReducesMaximumAndSum) {
  for (const int64_t devices : {2, 3, 4, 8}) {
    for (const int64_t size : {5, 16}) {
      EXPECT_THAT(CheckCase(SoftmaxCase({3, 4, size}, /*gradient=*/false,
                                        [](Builder& b, ValueId x) {
                                          Split(b, x, 2, "d");
                                        }),
                            Line(devices), {}, 1e-5f),
                  ElementsAre("all_reduce", "all_reduce"));
    }
  }
}

TEST(SoftmaxLoweringTest, TheGradientReducesOneSum) {
  for (const int64_t devices : {2, 3, 4, 8}) {
    for (const Shape& shape : {Shape{6, 5}, Shape{16}}) {
      const int last = static_cast<int>(shape.size()) - 1;
      // Maximum and sum forward, one sum backward. The sum of the test's loss
      // is not needed.
      EXPECT_THAT(CheckCase(SoftmaxCase(shape, /*gradient=*/true,
                                        [&](Builder& b, ValueId x) {
                                          Split(b, x, last, "d");
                                        }),
                            Line(devices), {}, 1e-5f),
                  ElementsAre("all_reduce", "all_reduce", "all_reduce"));
    }
  }
}

TEST(SoftmaxLoweringTest, LargeLogitsStayFinite) {
  CheckCase(SoftmaxCase({2, 5}, /*gradient=*/false,
                        [](Builder& b, ValueId x) { Split(b, x, 1, "d"); }),
            Line(4), {{"x", RandomTensor({2, 5}, 3, 3e38f)}}, 1e-5f);
  // Padding that counted as a logit of 0 would dominate logits near -200.
  Tensor negative = RandomTensor({2, 5}, 4);
  for (float& x : negative.span<float>()) x -= 200.0f;
  CheckCase(SoftmaxCase({2, 5}, /*gradient=*/false,
                        [](Builder& b, ValueId x) { Split(b, x, 1, "d"); }),
            Line(4), {{"x", negative}}, 1e-5f);
}

TEST(SoftmaxLoweringTest, WholeRowsStayOneOperator) {
  for (const int64_t devices : {1, 2, 3}) {
    Program program;
    EXPECT_THAT(CheckCase(SoftmaxCase({5, 7}, /*gradient=*/true,
                                      [](Builder& b, ValueId x) {
                                        Split(b, x, 0, "d");
                                      }),
                          Line(devices), {}, 0, {}, &program),
                IsEmpty());
    EXPECT_THAT(Operators(program, false), ::testing::Contains("softmax"));
  }
}

TEST(SoftmaxLoweringTest, RowsAndColumnsOnTwoAxes) {
  CheckCase(SoftmaxCase({5, 7}, /*gradient=*/true,
                        [](Builder& b, ValueId x) {
                          Split(b, x, 0, "x");
                          Split(b, x, 1, "y");
                        }),
            Square(), {}, 1e-5f);
  CheckCase(SoftmaxCase({5, 7}, /*gradient=*/true,
                        [](Builder& b, ValueId x) {
                          Split(b, x, 1, "x");
                          Split(b, x, 1, "y");
                        }),
            Square(), {}, 1e-5f);
}

}  // namespace
}  // namespace gshard
