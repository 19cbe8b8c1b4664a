// concat and reverse along split dimensions give the same bits as unsplit ones,
// in results and gradients.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/services/partition/lowering/window_case.h"
#include "tests/testing/builder_ops.h"

namespace gshard {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

constexpr int kConcatCases = 400;

TEST(ConcatLoweringTest, OperandsOfDifferentSizes) {
  int shifts = 0;
  for (uint64_t seed = 0; seed < kConcatCases; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    WindowCase c(seed);
    const DeviceMesh mesh = c.Mesh();
    Builder b("concat");
    const int64_t dim = c.Draw(0, 1);
    Shape shape = {c.Draw(1, 9), c.Draw(1, 9)};
    std::vector<ValueId> operands;
    for (int64_t i = c.Draw(1, 3); i > 0; --i) {
      shape[dim] = c.Draw(0, 6) == 0 ? 0 : c.Draw(1, 20);
      operands.push_back(
          FloatInput(b, absl::StrCat("x", operands.size()), shape));
      if (c.Draw(0, 3) > 0) c.Cut(b, operands.back(), {0, 1});
    }
    std::vector<ValueId> parts = operands;
    if (c.Draw(0, 4) == 0) parts.push_back(parts[0]);
    const ValueId y = Concat(b, parts, dim);
    if (c.Draw(0, 1) == 0) c.Cut(b, y, {0, 1});
    b.Output("y", y);
    // The gradient of a repeated operand is a sum of two terms, in the same
    // order on all meshes.
    AddWeightedGradients(b, y, operands);
    shifts += Shifts(CheckCase(std::move(b), mesh, {}, 0));
    if (HasFailure()) return;
  }
  EXPECT_GT(shifts, 50);
}

// Prepending a few elements moves all others by a place or two, so shifts
// suffice, and as many on any number of devices.
TEST(ConcatLoweringTest, AShortOperandIsCopiedAndALongOneShifted) {
  std::vector<std::vector<std::string>> ops;
  for (const int64_t devices : {4, 8, 64}) {
    Builder b("concat");
    const ValueId little = FloatInput(b, "little", {2, 3});
    const ValueId large = Split(b, FloatInput(b, "large", {254, 3}), 0, "d");
    b.Output("y",
             Split(b, Concat(b, {Replicate(b, little), large}, 0), 0, "d"));
    ASSERT_OK_AND_ASSIGN(const Program program, std::move(b).Finish());
    ASSERT_OK_AND_ASSIGN(const Partitioned partitioned,
                         Partition(program, Line(devices)));
    EXPECT_THAT(Operators(partitioned.program, /*collectives_only=*/true),
                Each("shift"));
    ops.push_back(Operators(partitioned.program, /*collectives_only=*/false));
  }
  EXPECT_THAT(ops, Each(ops[0]));
}

TEST(ReverseLoweringTest, PartsAreReversedAndSwapped) {
  int shifts = 0;
  for (uint64_t seed = 0; seed < kConcatCases; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    WindowCase c(seed);
    const DeviceMesh mesh = c.Mesh();
    Builder b("reverse");
    const ValueId x =
        FloatInput(b, "x", {c.Draw(0, 20), c.Draw(1, 20), c.Draw(1, 3)});
    c.Cut(b, x, {0, 1});
    const std::vector<int64_t> choices[] = {{0}, {1}, {0, 1}, {1, 2}};
    const ValueId y = b.Reverse(x, choices[c.Draw(0, 3)]);
    b.Output("y", y);
    AddWeightedGradients(b, y, {x});
    shifts += Shifts(CheckCase(std::move(b), mesh, {}, 0));
    if (HasFailure()) return;
  }
  EXPECT_GT(shifts, 50);
}

TEST(ReverseLoweringTest, IsOnePermuteAndUnevenOneShiftMore) {
  for (const int64_t size : {24, 23}) {
    Builder b("reverse");
    b.Output("y", b.Reverse(Split(b, FloatInput(b, "x", {size}), 0, "d"), {0}));
    const std::vector<std::string> collectives =
        CheckCase(std::move(b), Line(4), {}, 0);
    if (size == 24) {
      EXPECT_THAT(collectives, ElementsAre("permute"));
    } else {
      EXPECT_THAT(collectives, ElementsAre("permute", "shift"));
    }
  }
}

}  // namespace
}  // namespace gshard
