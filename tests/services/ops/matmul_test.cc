#include "services/ops/matmul.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <vector>

#include "services/ops/cast.h"
#include "tests/reference/matmul.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

constexpr auto kBFloat16 = ElementType::kBFloat16;

TEST(MatmulTest, EqualsReferenceOnOddSizesAndBothTransposes) {
  for (const int64_t m : {1, 3, 17, 70}) {
    for (const int64_t n : {1, 3, 17, 48}) {
      for (const int64_t k : {1, 3, 17, 100}) {
        for (const int flags : {0, 1, 2, 3, 4, 5, 6, 7}) {
          const MatmulShape shape{m, n, k, (flags & 1) != 0, (flags & 2) != 0};
          const bool accumulate = (flags & 4) != 0;
          const Tensor a = RandomTensor({m, k}, 1);
          const Tensor b = RandomTensor({k, n}, 2);
          Tensor c = RandomTensor({m, n}, 3);
          Tensor expected = c.Clone();
          Matmul(shape, a.f32(), b.f32(), c.f32(), accumulate);
          reference::Matmul(shape, a.f32(), b.f32(), expected.f32(),
                            accumulate);
          EXPECT_TRUE(TensorNear(c, expected, 1e-5f))
              << m << " " << n << " " << k << " " << flags;
        }
      }
    }
  }
}

TEST(MatmulTest, EmptySumIsZeroAndEmptyResultIsNothing) {
  const float* const kNothing = nullptr;
  Tensor c = RandomTensor({2, 3}, 1);
  const Tensor before = c.Clone();
  Matmul({.m = 2, .n = 3, .k = 0}, kNothing, kNothing, c.f32(), true);
  EXPECT_TRUE(TensorEqual(c, before));
  Matmul({.m = 2, .n = 3, .k = 0}, kNothing, kNothing, c.f32());
  EXPECT_TRUE(TensorEqual(c, Tensor::Zeros(ElementType::kFloat32, {2, 3})));
  Matmul({.m = 0, .n = 3, .k = 4}, kNothing, kNothing, nullptr);
  Matmul({.m = 2, .n = 0, .k = 4}, kNothing, kNothing, nullptr);
}

TEST(MatmulTest, BatchFollowsInMemory) {
  const MatmulShape shape{.m = 3, .n = 5, .k = 7, .transpose_b = true};
  const Tensor a = RandomTensor({4, 3, 7}, 1), b = RandomTensor({4, 5, 7}, 2);
  Tensor c(ElementType::kFloat32, {4, 3, 5});
  Tensor expected(ElementType::kFloat32, {4, 3, 5});
  BatchMatmul(shape, 4, a.f32(), b.f32(), c.f32());
  for (int i = 0; i < 4; ++i) {
    reference::Matmul(shape, a.f32() + i * 21, b.f32() + i * 35,
                      expected.f32() + i * 15);
  }
  EXPECT_TRUE(TensorNear(c, expected, 1e-5f));
}

// Serving and partitioned execution rely on oneDNN giving a row the same bits
// for any number of rows.
TEST(MatmulTest, RowsHaveTheSameBitsForAnyNumberOfRows) {
  struct Size {
    int64_t k, n;
  };
  for (const Size size :
       {Size{64, 128}, Size{512, 96}, Size{100, 77}, Size{17, 3}, Size{33, 1},
        Size{256, 1000}, Size{300, 1}, Size{257, 130}, Size{512, 1024},
        Size{1000, 1024}}) {
    for (const bool transpose_b : {false, true}) {
      const Tensor a = RandomTensor({300, size.k}, 1);
      const Tensor b = RandomTensor({size.k, size.n}, 2);
      MatmulShape shape{
          .m = 300, .n = size.n, .k = size.k, .transpose_b = transpose_b};
      Tensor all(ElementType::kFloat32, {300, size.n});
      Matmul(shape, a.f32(), b.f32(), all.f32());
      for (int64_t m = 1; m <= 300; m += m < 40 ? 1 : 13) {
        shape.m = m;
        // The first m rows, computed without the others.
        Tensor some(ElementType::kFloat32, {m, size.n});
        Matmul(shape, a.f32(), b.f32(), some.f32());
        ASSERT_TRUE(TensorEqual(some, all.Rows(0, m)))
            << "m " << m << " k " << size.k << " n " << size.n
            << " transpose_b " << transpose_b;
      }
    }
  }
}

// Few rows, which use a kernel of panel.h, have the bits of many in oneDNN.
TEST(MatmulTest, FewRowsAddTheBitsOfMany) {
  for (const int64_t k : {1, 9, 256, 300, 1000}) {
    for (const int64_t n : {16, 48, 144, 1024}) {
      const Tensor a = RandomTensor({20, k}, 1), b = RandomTensor({k, n}, 2);
      MatmulShape shape{.m = 20, .n = n, .k = k};
      Tensor all = RandomTensor({20, n}, 3);
      Matmul(shape, a.f32(), b.f32(), all.f32(), /*accumulate=*/true);
      for (shape.m = 1; shape.m <= 9; ++shape.m) {
        Tensor some = RandomTensor({20, n}, 3).Rows(0, shape.m).Clone();
        Matmul(shape, a.f32(), b.f32(), some.f32(), /*accumulate=*/true);
        ASSERT_TRUE(TensorEqual(some, all.Rows(0, shape.m)))
            << "m " << shape.m << " k " << k << " n " << n;
      }
    }
  }
}

// bfloat16 products match float32 products of the same numbers.
TEST(MatmulTest, BFloat16EqualsReference) {
  for (const int64_t m : {1, 3, 17, 70}) {
    for (const int64_t n : {1, 3, 17, 48}) {
      for (const int64_t k : {0, 1, 3, 17, 100, 1027, 2048}) {
        for (const int flags : {0, 1, 2, 3, 4, 5, 6, 7}) {
          const MatmulShape shape{m, n, k, (flags & 1) != 0, (flags & 2) != 0};
          const bool accumulate = (flags & 4) != 0;
          const Tensor a = Cast(RandomTensor({m, k}, 1), kBFloat16);
          const Tensor b = Cast(RandomTensor({k, n}, 2), kBFloat16);
          Tensor c = RandomTensor({m, n}, 3);
          Tensor expected = c.Clone();
          Matmul(shape, a.data<BFloat16>(), b.data<BFloat16>(), c.f32(),
                 accumulate);
          reference::Matmul(shape, Cast(a, ElementType::kFloat32).f32(),
                            Cast(b, ElementType::kFloat32).f32(),
                            expected.f32(), accumulate);
          EXPECT_TRUE(TensorNear(c, expected, 1e-5f))
              << m << " " << n << " " << k << " " << flags;
        }
      }
    }
  }
}

TEST(MatmulTest, BFloat16RowsHaveTheSameBitsForAnyNumberOfRows) {
  struct Size {
    int64_t k, n;
  };
  for (const Size size :
       {Size{64, 128}, Size{512, 96}, Size{100, 77}, Size{17, 3}, Size{33, 1},
        Size{256, 1000}, Size{300, 1}, Size{257, 130}, Size{512, 1024},
        Size{1000, 1024}, Size{2048, 70}, Size{2051, 100}}) {
    for (const bool transpose_b : {false, true}) {
      const Tensor a = Cast(RandomTensor({300, size.k}, 1), kBFloat16);
      const Tensor b = Cast(RandomTensor({size.k, size.n}, 2), kBFloat16);
      MatmulShape shape{
          .m = 300, .n = size.n, .k = size.k, .transpose_b = transpose_b};
      Tensor all(ElementType::kFloat32, {300, size.n});
      Matmul(shape, a.data<BFloat16>(), b.data<BFloat16>(), all.f32());
      for (int64_t m = 1; m <= 300; m += m < 40 ? 1 : 13) {
        shape.m = m;
        Tensor some(ElementType::kFloat32, {m, size.n});
        Matmul(shape, a.data<BFloat16>(), b.data<BFloat16>(), some.f32());
        ASSERT_TRUE(TensorEqual(some, all.Rows(0, m)))
            << "m " << m << " k " << size.k << " n " << size.n
            << " transpose_b " << transpose_b;
      }
    }
  }
}

// A row has the same bits whether b is packed once for all tiles (many rows) or
// by each tile (few).
TEST(MatmulTest, BFloat16AddsTheSameBitsForAnyNumberOfRows) {
  constexpr int64_t k = 1100, n = 96;
  const Tensor a = Cast(RandomTensor({300, k}, 1), kBFloat16);
  const Tensor b = Cast(RandomTensor({k, n}, 2), kBFloat16);
  const auto add = [&](int64_t m) {
    Tensor c = RandomTensor({300, n}, 3).Rows(0, m).Clone();
    Matmul({.m = m, .n = n, .k = k}, a.data<BFloat16>(), b.data<BFloat16>(),
           c.f32(), /*accumulate=*/true);
    return c;
  };
  EXPECT_TRUE(TensorEqual(add(60), add(300).Rows(0, 60)));
}

// Streaming changes no bits: whether a gradient is large enough to stream
// depends on how many experts its worker holds.
TEST(MatmulTest, StreamsHaveTheSameBits) {
  struct Size {
    int64_t m, n, k;
  };
  for (const auto& [m, n, k] :
       {Size{256, 96, 8}, Size{70, 1024, 300}, Size{300, 33, 5}, Size{1, 48, 3},
        Size{17, 1, 4}, Size{48, 500, 0}, Size{130, 64, 600}}) {
    for (const bool accumulate : {false, true}) {
      for (const auto type : {ElementType::kFloat32, kBFloat16}) {
        const Tensor a = Cast(RandomTensor({k, m}, 1), type);
        const Tensor b = Cast(RandomTensor({k, n}, 2), type);
        MatmulShape shape{.m = m, .n = n, .k = k, .transpose_a = true};
        std::vector<Tensor> results;
        for (const bool streams : {false, true}) {
          shape.streams = streams;
          Tensor c = RandomTensor({m, n}, 3);
          if (type == kBFloat16) {
            Matmul(shape, a.data<BFloat16>(), b.data<BFloat16>(), c.f32(),
                   accumulate);
          } else {
            Matmul(shape, a.f32(), b.f32(), c.f32(), accumulate);
          }
          results.push_back(std::move(c));
        }
        EXPECT_TRUE(TensorEqual(results[0], results[1]))
            << m << " " << n << " " << k << " " << accumulate;
      }
    }
  }
}

TEST(MatmulTest, ThreadsGiveTheSameBits) {
  InitCompute();
  const Tensor a = RandomTensor({33, 65}, 1), b = RandomTensor({65, 31}, 2);
  std::vector<Tensor> results(4);
  std::vector<std::thread> threads;
  for (Tensor& result : results) {
    threads.emplace_back([&] {
      result = Tensor(ElementType::kFloat32, {33, 31});
      for (int i = 0; i < 20; ++i) {
        Matmul({.m = 33, .n = 31, .k = 65}, a.f32(), b.f32(), result.f32());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Tensor& result : results) {
    EXPECT_TRUE(TensorEqual(result, results[0]));
  }
}

TEST(MatmulTest, MoreShapesThanTheCacheHoldsStayRight) {
  const Tensor a = RandomTensor({1200, 2}, 1), b = RandomTensor({2, 1}, 2);
  Tensor c(ElementType::kFloat32, {1200, 1});
  for (int64_t m = 1; m <= 1200; ++m) {
    Matmul({.m = m, .n = 1, .k = 2}, a.f32(), b.f32(), c.f32());
  }
  Tensor expected(ElementType::kFloat32, {1200, 1});
  reference::Matmul({.m = 1200, .n = 1, .k = 2}, a.f32(), b.f32(),
                    expected.f32());
  EXPECT_TRUE(TensorNear(c, expected, 1e-6f));
}

}  // namespace
}  // namespace gshard
