#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/services/partition/lowering/partitioned_case.h"

namespace gshard {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

struct Annotated {
  int operand;  // 2 is the result
  int dim;      // -1: replicated
  std::string axis;
};

Builder EinsumCase(const std::string& equation, Shape a, Shape b_shape,
                   const std::vector<Annotated>& splits) {
  Builder b("einsum");
  std::vector<ValueId> values = {
      b.Input("a", {ElementType::kFloat32, std::move(a)}),
      b.Input("b", {ElementType::kFloat32, std::move(b_shape)})};
  values.push_back(b.Einsum(equation, values[0], values[1]));
  for (const Annotated& split : splits) {
    if (split.dim < 0) {
      Replicate(b, values[split.operand]);
    } else {
      Split(b, values[split.operand], split.dim, split.axis);
    }
  }
  b.Output("y", values[2]);
  return b;
}

// A windowed einsum passes parts of b around instead of gathering b; nothing
// else moves, and the program does not grow with the devices.
TEST(EinsumLoweringTest, WindowedOverAnotherColumnOfTheResult) {
  for (const int64_t devices : {2, 3, 4, 8}) {
    for (const int64_t columns : {7, 24}) {
      const auto build = [&] {
        return EinsumCase("ab,bc->ac", {64, 10}, {10, columns},
                          {{0, 0, "d"}, {1, 1, "d"}, {2, 0, "d"}});
      };
      Program program;
      EXPECT_THAT(CheckCase(build(), Line(devices), {}, 1e-5f,
                            {.windowed_einsum_bytes = 1}, &program),
                  ElementsAre("windowed_einsum"));
      EXPECT_EQ(program.nodes.size(), 3);
      EXPECT_THAT(CheckCase(build(), Line(devices), {}, 1e-5f),
                  ElementsAre("all_gather"));
    }
  }
}

TEST(EinsumLoweringTest, WindowedOverWhatIsSummed) {
  for (const int64_t devices : {2, 3, 4, 8}) {
    for (const int64_t summed : {5, 9, 24}) {
      EXPECT_THAT(
          CheckCase(EinsumCase("ab,bc->ac", {64, summed}, {summed, 7},
                               {{0, 0, "d"}, {1, 0, "d"}, {2, 0, "d"}}),
                    Line(devices), {}, 1e-5f, {.windowed_einsum_bytes = 1}),
          ElementsAre("windowed_einsum"));
    }
  }
}

// A windowed einsum passes parts of the first operand around if the result is
// split by the second operand's columns.
TEST(EinsumLoweringTest, WindowedOverRowsOfTheResult) {
  for (const int64_t devices : {2, 3, 4, 8}) {
    EXPECT_THAT(
        CheckCase(EinsumCase("abm,mc->bac", {3, 5, 4}, {4, 96},
                             {{0, 1, "d"}, {1, 1, "d"}, {2, 2, "d"}}),
                  Line(devices), {}, 1e-5f, {.windowed_einsum_bytes = 1}),
        ElementsAre("windowed_einsum"));
  }
}

// A windowed einsum that also sums over another split axis masks the padding on
// that axis.
TEST(EinsumLoweringTest, WindowedWithASumOverAnotherAxis) {
  EXPECT_THAT(CheckCase(EinsumCase("abk,bkc->ac", {64, 5, 7}, {5, 7, 3},
                                   {{0, 0, "x"},
                                    {0, 2, "y"},
                                    {1, 0, "x"},
                                    {1, 1, "y"},
                                    {2, 0, "x"}}),
                        Square(), {}, 1e-5f, {.windowed_einsum_bytes = 1}),
              Contains("windowed_einsum"));
}

TEST(EinsumLoweringTest, SmallOperandsAreGathered) {
  const auto build = [] {
    return EinsumCase("ab,bc->ac", {64, 10}, {10, 7},
                      {{0, 0, "d"}, {1, 1, "d"}, {2, 0, "d"}});
  };
  EXPECT_THAT(
      CheckCase(build(), Line(2), {}, 1e-5f, {.windowed_einsum_bytes = 4 * 70}),
      ElementsAre("windowed_einsum"));
  EXPECT_THAT(CheckCase(build(), Line(2), {}, 1e-5f,
                        {.windowed_einsum_bytes = 4 * 70 + 1}),
              ElementsAre("all_gather"));
}

// The cases of GShard, section 3.3.2.
TEST(EinsumLoweringTest, ABatchSplitAlikeNeedsNoCommunication) {
  for (const int64_t devices : {1, 2, 3, 4, 8}) {
    EXPECT_THAT(CheckCase(EinsumCase("egm,emh->egh", {6, 4, 5}, {6, 5, 7},
                                     {{0, 0, "d"}, {1, 0, "d"}}),
                          Line(devices), {}, 1e-5f),
                IsEmpty());
  }
}

TEST(EinsumLoweringTest, ResultsSplitOtherwiseAreExchanged) {
  for (const int64_t devices : {2, 3, 4, 8}) {
    EXPECT_THAT(CheckCase(EinsumCase("gsec,gsm->egcm", {8, 6, 8, 2}, {8, 6, 5},
                                     {{0, 0, "d"}, {1, 0, "d"}, {2, 0, "d"}}),
                          Line(devices), {}, 1e-5f),
                ElementsAre("all_to_all"));
  }
}

TEST(EinsumLoweringTest, BothSplitOnTheSumAreReduced) {
  for (const int64_t devices : {2, 3, 4, 8}) {
    EXPECT_THAT(CheckCase(EinsumCase("ab,bc->ac", {6, 64}, {64, 7},
                                     {{0, 1, "d"}, {1, 0, "d"}}),
                          Line(devices), {}, 1e-5f),
                ElementsAre("all_reduce"));
  }
}

// One operand is split on the summed dimension and the result replicated: the
// cheaper of gathering the operand and reducing results is chosen.
TEST(EinsumLoweringTest, OneSplitOnTheSumMovesWhatIsSmaller) {
  for (const int64_t devices : {2, 4, 8}) {
    EXPECT_THAT(CheckCase(EinsumCase("ab,bc->ac", {64, 64}, {64, 2},
                                     {{0, 1, "d"}, {1, -1, ""}, {2, -1, ""}}),
                          Line(devices), {}, 1e-5f),
                ElementsAre("all_reduce"));
    EXPECT_THAT(CheckCase(EinsumCase("ab,bc->ac", {64, 2}, {2, 64},
                                     {{0, 1, "d"}, {1, -1, ""}, {2, -1, ""}}),
                          Line(devices), {}, 1e-5f),
                ElementsAre("all_gather"));
  }
}

}  // namespace
}  // namespace gshard
