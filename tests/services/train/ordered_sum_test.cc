#include "services/train/ordered_sum.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "services/base/random.h"
#include "tests/services/train/hungry_optimizer.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

std::vector<Tensor> Microbatch(int64_t index) {
  return {RandomTensor({3, 5}, index, 1000.0f),
          Tensor::Scalar(1.0f / (1.0f + index))};
}

// Sums in order, without OrderedSum.
std::vector<Tensor> PlainSum(int64_t count) {
  std::vector<Tensor> sum = Microbatch(0);
  for (int64_t i = 1; i < count; ++i) {
    const std::vector<Tensor> values = Microbatch(i);
    for (int64_t k = 0; k < 15; ++k) sum[0].f32()[k] += values[0].f32()[k];
    sum[1].f32()[0] += values[1].f32()[0];
  }
  return sum;
}

void ExpectPlainSum(OrderedSum& sum, int64_t count) {
  ASSERT_TRUE(sum.complete());
  const std::vector<Tensor> got = sum.Take();
  const std::vector<Tensor> expected = PlainSum(count);
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(TensorEqual(got[i], expected[i]));
  }
}

// All orders of arrival give the same bits, although plain sums in different
// orders differ.
TEST(OrderedSumTest, AnyOrderOfArrivalGivesTheSameBits) {
  constexpr int64_t kCount = 12;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    std::vector<int64_t> order(kCount);
    std::iota(order.begin(), order.end(), 0);
    for (int64_t i = kCount - 1; i > 0; --i) {
      std::swap(order[i], order[RandomBelow(seed, i, i + 1)]);
    }
    OrderedSum sum(kCount, kCount);
    for (const int64_t index : order) {
      EXPECT_FALSE(sum.complete());
      ASSERT_OK(sum.Add(index, Microbatch(index)));
    }
    ExpectPlainSum(sum, kCount);
  }
  float forward = 0.0f, backward = 0.0f;
  for (int64_t i = 0; i < kCount; ++i) {
    forward += Microbatch(i)[0].f32()[0];
    backward += Microbatch(kCount - 1 - i)[0].f32()[0];
  }
  EXPECT_NE(forward, backward);
}

TEST(OrderedSumTest, ThreadsMayAddAtOnce) {
  constexpr int64_t kCount = 64;
  OrderedSum sum(kCount, kCount);
  std::vector<std::thread> threads;
  for (int64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&sum, t] {
      for (int64_t i = t; i < kCount; i += 4) {
        ASSERT_OK(sum.Add(i, Microbatch(i)));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ExpectPlainSum(sum, kCount);
}

TEST(OrderedSumTest, RefusesAnIndexTwice) {
  OrderedSum sum(3, 3);
  ASSERT_OK(sum.Add(2, Microbatch(2)));
  EXPECT_THAT(sum.Add(2, Microbatch(2)),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       HasSubstr("microbatch 2 was added before")));
  ASSERT_OK(sum.Add(0, Microbatch(0)));
  EXPECT_THAT(sum.Add(0, Microbatch(0)),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("0")));
  ASSERT_OK(sum.Add(1, Microbatch(1)));
  ExpectPlainSum(sum, 3);
}

TEST(OrderedSumTest, RefusesIndicesOutOfRange) {
  OrderedSum sum(2, 2);
  for (const int64_t index : {-1, 2}) {
    EXPECT_THAT(sum.Add(index, Microbatch(0)),
                StatusIs(absl::StatusCode::kOutOfRange,
                         HasSubstr("expected a microbatch in [0, 2)")));
  }
}

// One that is too early takes no room from those that are not.
TEST(OrderedSumTest, KeepsNoneThatIsEarlierThanItMayBe) {
  OrderedSum sum(4, 1);
  for (const int64_t index : {2, 3}) {
    EXPECT_THAT(sum.Add(index, Microbatch(index)),
                StatusIs(absl::StatusCode::kResourceExhausted,
                         HasSubstr("at most 1 before microbatch 0 is added")));
  }
  ASSERT_OK(sum.Add(1, Microbatch(1)));
  ASSERT_OK(sum.Add(0, Microbatch(0)));
  EXPECT_EQ(sum.next(), 2);
  ASSERT_OK(sum.Add(3, Microbatch(3)));
  ASSERT_OK(sum.Add(2, Microbatch(2)));
  ExpectPlainSum(sum, 4);
}

TEST(OrderedSumTest, LeavesTensorsThatOthersHold) {
  const Tensor first = Tensor::Floats({2}, {1, 2});
  const Tensor second = Tensor::Floats({2}, {10, 20});
  OrderedSum sum(2, 0);
  ASSERT_OK(sum.Add(0, {first}));
  ASSERT_OK(sum.Add(1, {second}));
  EXPECT_TRUE(TensorEqual(sum.Take()[0], Tensor::Floats({2}, {11, 22})));
  EXPECT_TRUE(TensorEqual(first, Tensor::Floats({2}, {1, 2})));
}

// Summing leaves zeros in the unwritten rows of blocks that are reused.
TEST(OrderedSumTest, LeavesZeroRows) {
  const auto gradient = [](std::vector<bool> written) {
    Tensor tensor = Tensor::ZeroRows(ElementType::kFloat32, {2, 3}, written);
    for (int64_t i = 0; i < 6; ++i) {
      if (written[i / 3]) tensor.f32()[i] = 2.0f;
    }
    return tensor;
  };
  {
    OrderedSum sum(2, 0);
    ASSERT_OK(sum.Add(0, {gradient({true, false})}));
    ASSERT_OK(sum.Add(1, {gradient({false, true})}));
    EXPECT_TRUE(
        TensorEqual(sum.Take()[0], Tensor::Floats({2, 3}, {2, 2, 2, 2, 2, 2})));
  }
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(TensorEqual(gradient({true, false}),
                            Tensor::Floats({2, 3}, {2, 2, 2, 0, 0, 0})));
  }
}

TEST(OrderedSumTest, NothingToSumIsFine) {
  OrderedSum sum(2, 2);
  ASSERT_OK(sum.Add(1, {}));
  ASSERT_OK(sum.Add(0, {}));
  EXPECT_TRUE(sum.Take().empty());
}

// Sums that are shared are replaced, for which there has to be memory.
TEST(OrderedSumTest, WithoutMemoryItEnds) {
  std::byte nothing[4];
  const Tensor huge = Tensor::Wrap(ElementType::kFloat32, kHugeDims, nothing,
                                   std::make_shared<int>());
  OrderedSum sum(3, 0);
  ASSERT_OK(sum.Add(0, {huge}));
  const absl::Status failed = sum.Add(1, {huge});
  EXPECT_THAT(failed, StatusIs(absl::StatusCode::kResourceExhausted,
                               HasSubstr("no memory for f32")));
  EXPECT_EQ(sum.status(), failed);
  EXPECT_EQ(sum.Add(2, {huge}), failed);
}

}  // namespace
}  // namespace gshard
