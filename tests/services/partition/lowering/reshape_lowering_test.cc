// reshape of split dimensions gives the same bits as an unsplit one, in results
// and gradients.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/services/partition/lowering/window_case.h"

namespace gshard {
namespace {

using ::testing::Each;
using ::testing::IsEmpty;

constexpr int kReshapeCases = 600;

// Merging and splitting dimensions gives the same bits: random factors are
// grouped into the dimensions of x and, differently, of y.
TEST(ReshapeLoweringTest, MergesAndSplits) {
  int shifts = 0;
  for (uint64_t seed = 0; seed < kReshapeCases; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    WindowCase c(seed);
    const DeviceMesh mesh = c.Mesh();
    std::vector<int64_t> factors;
    for (int64_t i = c.Draw(1, 4); i > 0; --i) {
      factors.push_back(c.Draw(0, 20) == 0 ? 0 : c.Draw(1, 7));
    }
    const auto grouped = [&] {
      Shape shape = {factors[0]};
      for (size_t i = 1; i < factors.size(); ++i) {
        if (c.Draw(0, 1) == 0) {
          shape.back() = shape.back() * factors[i];
        } else {
          shape.push_back(factors[i]);
        }
      }
      return shape;
    };
    const auto dims = [](const Shape& shape) {
      std::vector<int> all;
      for (size_t d = 0; d < shape.size(); ++d) all.push_back(d);
      return all;
    };
    Builder b("reshape");
    const Shape from = grouped(), to = grouped();
    const ValueId x = FloatInput(b, "x", from);
    c.Cut(b, x, dims(from));
    const ValueId y = b.Reshape(x, to);
    if (c.Draw(0, 1) == 0) c.Cut(b, y, dims(to));
    b.Output("y", y);
    AddWeightedGradients(b, y, {x});
    shifts += Shifts(CheckCase(std::move(b), mesh, {}, 0));
    if (HasFailure()) return;
  }
  EXPECT_GT(shifts, 50);
}

// Converting between [3, 2] in parts of 2 and 1 rows and [6] in parts of 3
// elements takes only shifts.
TEST(ReshapeLoweringTest, UnevenPartsGetWhatTheyLackFromTheirNeighbours) {
  for (const auto& [from, to] :
       {std::pair<Shape, Shape>{{3, 2}, {6}}, {{6}, {3, 2}}}) {
    Builder b("reshape");
    const ValueId x = Split(b, FloatInput(b, "x", from), 0, "d");
    b.Output("y", b.Reshape(x, to));
    EXPECT_THAT(CheckCase(std::move(b), Line(2), {}, 0), Each("shift"));
  }
}

// Reshapes that keep the rows of each part together need no communication.
TEST(ReshapeLoweringTest, EvenPartsStayWhereTheyAre) {
  for (const int64_t devices : {2, 3, 4}) {
    Builder b("reshape");
    const ValueId x = Split(b, FloatInput(b, "x", {12, 4, 5}), 0, "d");
    const ValueId flat = b.Relu(b.Reshape(x, {48, 5}));
    b.Output("y", b.Reshape(flat, {12, 20}));
    EXPECT_THAT(CheckCase(std::move(b), Line(devices), {}, 0), IsEmpty());
  }
}

}  // namespace
}  // namespace gshard
