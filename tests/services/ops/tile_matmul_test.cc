#include "services/ops/tile_matmul.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/reference/matmul.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

TEST(TileMatmulTest, EqualsReferenceForBothOrientationsOfA) {
  for (const int64_t m : {0, 1, 2, 3, 4, 5, 17}) {
    for (const int64_t n : {0, 16, 48}) {
      for (const int64_t k : {0, 1, 33}) {
        for (const bool transpose : {false, true}) {
          const Tensor a = RandomTensor({m, k}, 1);
          const Tensor b = RandomTensor({k, n}, 2);
          Tensor c(ElementType::kFloat32, {m, n});
          Tensor expected(ElementType::kFloat32, {m, n});
          TileMatmul(m, n, k,
                     transpose ? TileOperand{a.f32(), 1, m}
                               : TileOperand{a.f32(), k, 1},
                     b.f32(), n, c.f32(), n);
          reference::Matmul({.m = m, .n = n, .k = k, .transpose_a = transpose},
                            a.f32(), b.f32(), expected.f32());
          EXPECT_TRUE(TensorNear(c, expected, 1e-5f));
        }
      }
    }
  }
}

TEST(TileMatmulTest, PartsAddUpToTheSameBits) {
  constexpr int64_t kM = 7, kN = 32, kK = 150;
  const Tensor a = RandomTensor({kM, kK}, 1), b = RandomTensor({kK, kN}, 2);
  for (const bool transpose : {false, true}) {
    const TileOperand all =
        transpose ? TileOperand{a.f32(), 1, kM} : TileOperand{a.f32(), kK, 1};
    Tensor expected(ElementType::kFloat32, {kM, kN});
    TileMatmul(kM, kN, kK, all, b.f32(), kN, expected.f32(), kN);
    Tensor c = Tensor::Zeros(ElementType::kFloat32, {kM, kN});
    for (int64_t k = 0; k < kK; k += 64) {
      TileOperand part = all;
      part.data += k * all.column_stride;
      AddTileMatmul(kM, kN, std::min<int64_t>(64, kK - k), part,
                    b.f32() + k * kN, kN, c.f32(), kN);
    }
    EXPECT_TRUE(TensorEqual(c, expected));
  }
}

TEST(TileMatmulTest, WritesNothingBetweenRows) {
  const Tensor a = RandomTensor({3, 2}, 1), b = RandomTensor({2, 16}, 2);
  Tensor c = RandomTensor({3, 20}, 3);
  const Tensor before = c.Clone();
  TileMatmul(3, 16, 2, {a.f32(), 2, 1}, b.f32(), 16, c.f32(), 20);
  for (int r = 0; r < 3; ++r) {
    for (int i = 16; i < 20; ++i) {
      EXPECT_EQ(c.f32()[r * 20 + i], before.f32()[r * 20 + i]);
    }
  }
}

}  // namespace
}  // namespace gshard
