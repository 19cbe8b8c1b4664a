#include "services/data/batch_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "services/base/random.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

// Lengths like those of titles: mostly short, a few long.
std::vector<int32_t> Lengths(int count) {
  std::vector<int32_t> lengths(count);
  for (int i = 0; i < count; ++i) {
    lengths[i] =
        3 + static_cast<int32_t>(RandomBelow(1, i, 15) + RandomBelow(2, i, 15));
    if (i % 50 == 0) lengths[i] += 60;
  }
  return lengths;
}

BatchOrderOptions Options() {
  BatchOrderOptions options;
  options.seed = 7;
  options.tokens = 256;
  options.microbatches_per_step = 4;
  options.pool = 500;
  return options;
}

// Every sentence once an epoch; of targets without `targets` all are alike.
absl::StatusOr<BatchOrder> Make(const std::vector<int32_t>& lengths,
                                const BatchOrderOptions& options,
                                const std::vector<int32_t>& targets = {}) {
  const auto sentences = static_cast<int32_t>(lengths.size());
  return BatchOrder::Create(
      sentences,
      [=](int32_t i) {
        return PairLengths{lengths[i], targets.empty() ? 0 : targets[i]};
      },
      options, EpochSampler::All(sentences));
}
BatchOrder Order(const std::vector<int32_t>& lengths,
                 const BatchOrderOptions& options) {
  auto order = Make(lengths, options);
  EXPECT_OK(order);
  return *std::move(order);
}

// Whether `step` begins behind the first three epochs.
bool IsLate(const BatchOrder& order, int64_t step) {
  const int64_t number = step * order.options().microbatches_per_step;
  return number >= order.MicrobatchesInEpoch(0) + order.MicrobatchesInEpoch(1) +
                       order.MicrobatchesInEpoch(2);
}

// Microbatch `number` of the run.
std::vector<int32_t> At(const BatchOrder& order, int64_t number) {
  const int32_t per_step = order.options().microbatches_per_step;
  return order.Microbatch(number / per_step,
                          static_cast<int32_t>(number % per_step));
}

TEST(BatchOrderTest, EverySentenceComesOncePerEpoch) {
  for (const int count : {1, 2, 499, 500, 501, 3000}) {
    for (const int32_t pool : {1, 7, 500, 1 << 30}) {
      BatchOrderOptions options = Options();
      options.pool = pool;
      const BatchOrder order = Order(Lengths(count), options);
      int64_t number = 0;
      for (int64_t epoch = 0; epoch < 3; ++epoch) {
        std::vector<int32_t> seen;
        const int64_t end = number + order.MicrobatchesInEpoch(epoch);
        for (; number < end; ++number) {
          const std::vector<int32_t> batch = At(order, number);
          seen.insert(seen.end(), batch.begin(), batch.end());
        }
        std::sort(seen.begin(), seen.end());
        std::vector<int32_t> all(count);
        std::iota(all.begin(), all.end(), 0);
        EXPECT_EQ(seen, all) << count << " sentences, pool " << pool;
      }
    }
  }
}

TEST(BatchOrderTest, DoesNotDependOnTheOrderOfAsking) {
  const std::vector<int32_t> lengths = Lengths(3000);
  const BatchOrder forward = Order(lengths, Options());
  const BatchOrder shuffled = Order(lengths, Options());
  const int steps = 300;  // several epochs
  std::vector<std::vector<int32_t>> expected;
  for (int i = 0; i < 4 * steps; ++i) expected.push_back(At(forward, i));
  ASSERT_TRUE(IsLate(forward, steps - 1));
  for (int i = 0; i < 4 * steps; ++i) {
    const int number = i * 7919 % (4 * steps);
    EXPECT_EQ(At(shuffled, number), expected[number]);
  }
  // A router may start in the middle of a run.
  EXPECT_EQ(At(Order(lengths, Options()), 1001), expected[1001]);
  // A plan that was made ahead of earlier ones is like others.
  const BatchOrder ahead = Order(lengths, Options());
  EXPECT_GT(ahead.MicrobatchesInEpoch(1), 0);
  EXPECT_EQ(At(ahead, 1001), expected[1001]);
}

// The order stays the same, since jobs of earlier versions resume with it.
TEST(BatchOrderTest, StaysAsItIs) {
  const std::vector<int32_t> lengths = Lengths(3000);
  std::vector<int32_t> second;
  for (int i = 0; i < 3000; ++i) {
    second.push_back(1 + static_cast<int32_t>(RandomBelow(3, i, lengths[i])));
  }
  ASSERT_OK_AND_ASSIGN(const BatchOrder order,
                       Make(lengths, Options(), second));
  uint64_t digest = 0;
  for (int64_t n = 0; n < 1200; ++n) {
    for (const int32_t sentence : At(order, n)) {
      digest = FoldIn(digest, static_cast<uint64_t>(n * 4096 + sentence));
    }
  }
  EXPECT_EQ(digest, 14845559612607202122ull);
}

TEST(BatchOrderTest, ManyThreadsSeeTheSame) {
  const std::vector<int32_t> lengths = Lengths(2000);
  const BatchOrder alone = Order(lengths, Options());
  const BatchOrder shared = Order(lengths, Options());
  std::vector<std::vector<int32_t>> expected;
  for (int i = 0; i < 400; ++i) expected.push_back(At(alone, i));
  std::vector<int> wrong(4, 0);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = t; i < 400; i += 2) {
        if (At(shared, i) != expected[i]) ++wrong[t];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, ::testing::Each(0));
}

TEST(BatchOrderTest, KeepsTheBudgetAndFillsIt) {
  const std::vector<int32_t> lengths = Lengths(20000);
  BatchOrderOptions options = Options();
  options.pool = 4096;
  options.tokens = 1024;
  const BatchOrder order = Order(lengths, options);
  int64_t padded = 0, tokens = 0;
  const int64_t batches = order.MicrobatchesInEpoch(0);
  for (int64_t i = 0; i < batches; ++i) {
    const std::vector<int32_t> batch = At(order, i);
    ASSERT_FALSE(batch.empty());
    int32_t longest = 0;
    for (const int32_t s : batch) {
      longest = std::max(longest, lengths[s]);
      tokens += lengths[s];
    }
    EXPECT_EQ(longest, lengths[batch[0]]);
    const int64_t size = static_cast<int64_t>(batch.size()) * longest;
    EXPECT_LE(size, options.tokens);
    padded += size;
  }
  // Little padding, and budgets well used.
  EXPECT_GT(static_cast<double>(tokens) / static_cast<double>(padded), 0.95);
  EXPECT_GT(static_cast<double>(padded) /
                static_cast<double>(batches * options.tokens),
            0.9);
}

TEST(BatchOrderTest, SecondLengthsVaryLittleInABatch) {
  const std::vector<int32_t> lengths = Lengths(20000);
  std::vector<int32_t> second(lengths.size());
  for (size_t i = 0; i < second.size(); ++i) {
    second[i] = 1 + static_cast<int32_t>(RandomBelow(3, i, lengths[i]));
  }
  // Second lengths as a share of their padded size.
  const auto fill = [&](const BatchOrder& order) {
    int64_t padded = 0, tokens = 0;
    for (int64_t i = 0; i < order.MicrobatchesInEpoch(0); ++i) {
      int32_t longest = 0;
      const std::vector<int32_t> batch = At(order, i);
      for (const int32_t s : batch) {
        longest = std::max(longest, second[s]);
        tokens += second[s];
      }
      padded += static_cast<int64_t>(batch.size()) * longest;
    }
    EXPECT_EQ(tokens, std::accumulate(second.begin(), second.end(), 0));
    return static_cast<double>(tokens) / static_cast<double>(padded);
  };
  BatchOrderOptions options = Options();
  options.pool = 16384;
  const double without = fill(Order(lengths, options));
  const auto with = Make(lengths, options, second);
  ASSERT_OK(with);
  EXPECT_LT(without, 0.6);
  EXPECT_GT(fill(*with), 0.9);
}

TEST(BatchOrderTest, SeedsAndEpochsDiffer) {
  const std::vector<int32_t> lengths = Lengths(1000);
  BatchOrderOptions other = Options();
  other.seed = 8;
  const BatchOrder a = Order(lengths, Options());
  const BatchOrder b = Order(lengths, other);
  int same_seed = 0, same_epoch = 0;
  const int64_t epoch = a.MicrobatchesInEpoch(0);
  for (int64_t i = 0; i < 20; ++i) {
    same_seed += At(a, i) == At(b, i);
    same_epoch += At(a, i) == At(a, epoch + i);
  }
  EXPECT_EQ(same_seed, 0);
  EXPECT_EQ(same_epoch, 0);
}

TEST(BatchOrderTest, LengthsAreMixedOverTheEpoch) {
  const std::vector<int32_t> lengths = Lengths(5000);
  BatchOrderOptions options = Options();
  options.pool = 5000;
  const BatchOrder order = Order(lengths, options);
  // If batches stayed sorted, the first half would hold all the long ones.
  const int64_t batches = order.MicrobatchesInEpoch(0);
  int first_half = 0, all = 0;
  for (int64_t i = 0; i < batches; ++i) {
    const bool long_ones = lengths[At(order, i)[0]] > 40;
    all += long_ones;
    if (i < batches / 2) first_half += long_ones;
  }
  EXPECT_NEAR(first_half, all / 2.0, all / 4.0);
}

TEST(BatchOrderTest, RefusesBadOptions) {
  const auto expect = [](const std::vector<int32_t>& lengths,
                         const BatchOrderOptions& options,
                         const std::string& message) {
    EXPECT_THAT(
        Make(lengths, options),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  };
  BatchOrderOptions options = Options();
  options.tokens = 0;
  expect({1}, options, "tokens: expected at least 1, got 0");
  options = Options();
  options.microbatches_per_step = -1;
  expect({1}, options, "microbatches_per_step");
  options = Options();
  options.pool = 0;
  expect({1}, options, "pool");
  expect({}, Options(), "no sentences");
  expect({5, 0}, Options(), "sentence 1 has 0 pieces");
}

TEST(BatchOrderTest, LongestSentenceThatFitsIsABatchOfItsOwn) {
  const BatchOrder order = Order({3, 256, 3}, Options());
  EXPECT_EQ(order.MicrobatchesInEpoch(0), 2);
  EXPECT_THAT(Make({3, 257}, Options()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("sentence 1 has 257 pieces; expected 1 to "
                                 "the 256")));
}

TEST(BatchOrderTest, PreparesALateStepUnlessStopped) {
  const std::vector<int32_t> lengths = Lengths(600);
  const BatchOrder whole = Order(lengths, Options());
  const int64_t late = 40;
  ASSERT_TRUE(IsLate(whole, late));
  const BatchOrder prepared = Order(lengths, Options());
  ASSERT_OK(prepared.Prepare(late, {}));
  std::stop_source stop;
  stop.request_stop();
  // Nothing is left to do up to there.
  ASSERT_OK(prepared.Prepare(late, stop.get_token()));
  EXPECT_EQ(prepared.Microbatch(late, 1), whole.Microbatch(late, 1));
  const BatchOrder stopped = Order(lengths, Options());
  EXPECT_THAT(stopped.Prepare(late, stop.get_token()),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("step 40")));
}

}  // namespace
}  // namespace gshard
