// pad, slice, slice_gradient, dynamic_slice and mask_tail along split
// dimensions give the same bits as unsplit ones, in results and gradients.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/services/partition/lowering/window_case.h"
#include "tests/testing/builder_ops.h"

namespace gshard {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int kPadCases = 400;

TEST(PadLoweringTest, PadsAndTheirGradients) {
  int shifts = 0;
  for (uint64_t seed = 0; seed < kPadCases; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    WindowCase c(seed);
    const DeviceMesh mesh = c.Mesh();
    Builder b("pad");
    Shape shape;
    std::vector<int64_t> low, high, interior;
    for (int d = 0; d < 2; ++d) {
      const int64_t size = c.Draw(1, 13);
      shape.push_back(size);
      low.push_back(c.Draw(-std::min<int64_t>(size, 3), 5));
      high.push_back(c.Draw(
          -std::min<int64_t>(size + std::min<int64_t>(low[d], 0), 3), 5));
      interior.push_back(c.Draw(0, 3) == 0 ? c.Draw(1, 3) : 0);
      // Interior padding is not combined with cropping.
      if (interior[d] > 0) low[d] = high[d] = c.Draw(0, 2);
    }
    const ValueId x = FloatInput(b, "x", shape);
    c.Cut(b, x, {0, 1});
    const ValueId y = b.AddOne("pad", {x},
                               {{"low", low},
                                {"high", high},
                                {"interior", interior},
                                {"value", c.Draw(0, 1) == 0 ? 0.0 : 1.5}});
    b.Output("y", y);
    AddWeightedGradients(b, y, {x});
    shifts += Shifts(CheckCase(std::move(b), mesh, {}, 0));
    if (HasFailure()) return;
  }
  EXPECT_GT(shifts, 50);
}

TEST(PadLoweringTest, SlicesAndTheirGradients) {
  int shifts = 0;
  for (uint64_t seed = 0; seed < kPadCases; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    WindowCase c(seed);
    const DeviceMesh mesh = c.Mesh();
    Builder b("slice");
    const Shape shape = {c.Draw(1, 13), c.Draw(1, 24)};
    const int64_t dim = c.Draw(0, 1), size = shape[dim].size();
    const int64_t begin = c.Draw(0, std::min<int64_t>(size, 6));
    const int64_t end = c.Draw(begin, size);
    const ValueId x = FloatInput(b, "x", shape);
    c.Cut(b, x, {0, 1});
    const ValueId y = b.Slice(x, dim, begin, end);
    if (c.Draw(0, 1) == 0) c.Cut(b, y, {0, 1});
    b.Output("y", y);
    AddWeightedGradients(b, y, {x});
    shifts += Shifts(CheckCase(std::move(b), mesh, {}, 0));
    if (HasFailure()) return;
  }
  EXPECT_GT(shifts, 30);
}

TEST(PadLoweringTest, IntegersMoveToo) {
  for (const int64_t devices : {2, 3, 4, 8}) {
    Builder b("integers");
    const ValueId x = b.Input("x", {ElementType::kInt32, {17, 2}});
    Split(b, x, 0, "d");
    const auto pad = [&](double value) {
      return b.Pad(x, {3, 0}, {-2, 0}, value);
    };
    b.Output("slice", b.Slice(x, 0, 1, 15));
    b.Output("pad", pad(0.0));
    b.Output("pad with a value", pad(7.0));
    b.Output("reverse", b.Reverse(x, {0}));
    b.Output("concat", Concat(b, {x, b.Slice(x, 0, 0, 3)}, 0));
    b.Output("reshape", b.Reshape(x, {34}));
    CheckCase(std::move(b), Line(devices), {{"x", Counting({17, 2})}}, 0);
  }
}

TEST(PadLoweringTest, TailsAreMaskedWhereTheyAre) {
  for (uint64_t seed = 0; seed < kPadCases; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    WindowCase c(seed);
    const DeviceMesh mesh = c.Mesh();
    Builder b("mask_tail");
    const Shape shape = {c.Draw(1, 13), c.Draw(1, 13)};
    const int64_t dim = c.Draw(0, 1);
    const ValueId x = FloatInput(b, "x", shape);
    c.Cut(b, x, {0, 1});
    const ValueId limit = b.Input("limit", {ElementType::kInt64, {}});
    const ValueId y =
        b.AddOne("mask_tail", {x, limit}, {{"dim", dim}, {"value", -0.5}});
    b.Output("y", y);
    AddWeightedGradients(b, y, {x});
    const TensorMap given = {
        {"limit", KeyTensor(c.Draw(-1, shape[dim].size() + 1))}};
    EXPECT_THAT(CheckCase(std::move(b), mesh, given, 0), IsEmpty());
    if (HasFailure()) return;
  }
}

TEST(PadLoweringTest, DynamicSlicesKeepOtherDimensionsSplit) {
  for (const int64_t devices : {1, 2, 3, 4, 8}) {
    Builder b("dynamic_slice");
    const ValueId x = Split(b, FloatInput(b, "x", {13, 9}), 0, "d");
    const ValueId start = b.Input("start", {ElementType::kInt64, {}});
    b.Output("y", b.AddOne("dynamic_slice", {x, start},
                           {{"dim", int64_t{1}}, {"size", int64_t{4}}}));
    EXPECT_THAT(
        CheckCase(std::move(b), Line(devices), {{"start", KeyTensor(3)}}, 0),
        IsEmpty());
  }
}

// A short slice takes elements from one neighbour only, and the program is as
// long for 64 devices as for 4.
TEST(PadLoweringTest, ASliceIsOneShiftOnAnyNumberOfDevices) {
  std::vector<std::vector<std::string>> ops;
  for (const int64_t devices : {4, 8, 64}) {
    Builder b("slice");
    const ValueId x = Split(b, FloatInput(b, "x", {256, 3}), 0, "d");
    b.Output("y", b.Slice(x, 0, 2, 256));
    ASSERT_OK_AND_ASSIGN(const Program program, std::move(b).Finish());
    ASSERT_OK_AND_ASSIGN(const Partitioned partitioned,
                         Partition(program, Line(devices)));
    EXPECT_THAT(Operators(partitioned.program, /*collectives_only=*/true),
                ElementsAre("shift"));
    ops.push_back(Operators(partitioned.program, /*collectives_only=*/false));
  }
  EXPECT_THAT(ops, Each(ops[0]));
}

// A slice that keeps half of a dimension, far from where it is needed, is
// gathered rather than passed hop by hop.
TEST(PadLoweringTest, WhatIsFarIsGathered) {
  Builder b("slice");
  const ValueId x = Split(b, FloatInput(b, "x", {64}), 0, "d");
  b.Output("y", Split(b, b.Slice(x, 0, 30, 64), 0, "d"));
  EXPECT_THAT(CheckCase(std::move(b), Line(8), {}, 0),
              ElementsAre("all_gather"));
}

// A device that holds all of x takes its part without communication.
TEST(PadLoweringTest, WhatIsAtHandIsNotExchanged) {
  Builder b("pad");
  const ValueId x = Replicate(b, FloatInput(b, "x", {9}));
  b.Output("y", Split(b, b.Pad(x, {2}, {1}, 1.5), 0, "d"));
  EXPECT_THAT(CheckCase(std::move(b), Line(4), {}, 0), IsEmpty());
}

}  // namespace
}  // namespace gshard
