#include "services/cuda/kernels/row_sums.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "services/train/gradient_norm.h"
#include "tests/services/cuda/emulated_kernels.h"
#include "tests/testing/tensors.h"

namespace gshard::cuda {
namespace {

// Row sums have the CPU's bits for lengths up to 70 and any order of threads.
TEST(RowSumsTest, AreThoseOfTheCpu) {
  for (int64_t width = 1; width <= 70; ++width) {
    constexpr int64_t kRows = 35;  // not a multiple of a block's rows
    const Tensor x = RandomTensor({kRows, width}, width);
    std::vector<double> sums(kRows, std::numeric_limits<double>::quiet_NaN());
    Emulate(RowSums<Square>{{kRows, width, width}, {x.f32()}, sums.data()},
            /*seed=*/width);
    for (int64_t r = 0; r < kRows; ++r) {
      EXPECT_EQ(sums[r], SumOfSquares(x.Rows(r, r + 1).span<float>()))
          << width << " row " << r;
    }
  }
}

// Sums of the rows of a part, the last one shorter, add up to the part's sum.
TEST(RowSumsTest, CutParts) {
  constexpr int64_t kParts = 3, kSize = 100, kWidth = 40;
  const Tensor x = RandomTensor({kParts, kSize}, 1);
  const RowsOfParts rows = {kParts, kSize, kWidth};
  ASSERT_EQ(rows.of_part(), 3);
  std::vector<double> sums(rows.rows()), parts(kParts);
  Emulate(RowSums<Square>{rows, {x.f32()}, sums.data()});
  EmulateElements(PartSums{sums.data(), rows.of_part(), parts.data()}, kParts);
  for (int64_t p = 0; p < kParts; ++p) {
    const auto all = x.Rows(p, p + 1).span<float>();
    EXPECT_EQ(sums[3 * p + 1], SumOfSquares(all.subspan(40, 40)));
    EXPECT_EQ(sums[3 * p + 2], SumOfSquares(all.subspan(80)));
    EXPECT_EQ(parts[p], sums[3 * p] + sums[3 * p + 1] + sums[3 * p + 2]);
  }
}

}  // namespace
}  // namespace gshard::cuda
