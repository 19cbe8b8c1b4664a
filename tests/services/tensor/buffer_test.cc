#include "services/tensor/buffer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>
#include <thread>
#include <vector>

#include "services/base/retry_delay.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

TEST(BufferTest, BlocksAreAlignedAndWritableAtEverySize) {
  for (const size_t bytes : {0, 1, 63, 64, 65, 512, 513, 576, 577, 1023, 1024,
                             1025, 100000, 1 << 20}) {
    const auto block = AllocateBuffer(bytes);
    ASSERT_NE(block, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block.get()) % 64, 0u);
    std::memset(block.get(), 0xAB, bytes);
  }
}

TEST(BufferTest, UsageCountsWhatIsHeldAndAtMostAnEighthMore) {
  const size_t before = GetBufferUsage().live_bytes;
  for (const size_t bytes : {1000, 4096, 5000, 123456}) {
    const auto block = AllocateBuffer(bytes);
    const size_t held = GetBufferUsage().live_bytes - before;
    EXPECT_GE(held, bytes);
    EXPECT_LE(held, bytes + bytes / 8 + 64);
  }
  EXPECT_EQ(GetBufferUsage().live_bytes, before);
}

TEST(BufferTest, AFreedBlockIsHandedOutAgain) {
  TrimBufferCache();
  const std::byte* first = AllocateBuffer(10000).get();
  EXPECT_GE(GetBufferUsage().cached_bytes, 10000u);
  // A nearly equal size shares the block.
  const auto second = AllocateBuffer(10001);
  EXPECT_EQ(second.get(), first);
  EXPECT_EQ(GetBufferUsage().cached_bytes, 0u);
}

TEST(BufferTest, LiveBlocksAreNeverShared) {
  const auto a = AllocateBuffer(4096);
  const auto b = AllocateBuffer(4096);
  std::memset(a.get(), 1, 4096);
  std::memset(b.get(), 2, 4096);
  EXPECT_EQ(a.get()[4095], std::byte{1});
}

TEST(BufferTest, WithoutMemoryTheResultIsAnError) {
  const size_t before = GetBufferUsage().live_bytes;
  const absl::Status refused = TryAllocateBuffer(size_t{1} << 62).status();
  EXPECT_THAT(refused,
              StatusIs(absl::StatusCode::kResourceExhausted,
                       ::testing::HasSubstr("4611686018427387904 bytes")));
  EXPECT_TRUE(RetryDelay(refused).has_value());  // others may free some
  EXPECT_EQ(GetBufferUsage().live_bytes, before);
  ASSERT_OK_AND_ASSIGN(const auto block, TryAllocateBuffer(100));
  std::memset(block.get(), 0xAB, 100);
}

TEST(BufferTest, TrimGivesCachedBlocksBack) {
  { const auto block = AllocateBuffer(1 << 16); }
  EXPECT_GT(GetBufferUsage().cached_bytes, 0u);
  TrimBufferCache();
  EXPECT_EQ(GetBufferUsage().cached_bytes, 0u);
}

TEST(BufferTest, SizesBeyondAnyMemoryAreRefused) {
  const size_t half = size_t{1} << 63;
  for (const size_t bytes : {half - 1, half, half + 1, SIZE_MAX}) {
    EXPECT_THROW(AllocateBuffer(bytes), std::bad_alloc);
  }
}

// With ever new sizes, each at its own peak, as in a server, the cache holds at
// most about twice the peak of live bytes.
TEST(BufferTest, HoldsNoMoreThanTwiceWhatWasLive) {
  TrimBufferCache();
  constexpr size_t kMiB = size_t{1} << 20;
  size_t most = 0;
  for (size_t bytes = kMiB; bytes <= 64 * kMiB; bytes += kMiB / 2) {
    const auto block = AllocateBuffer(bytes);
    most = std::max(most, GetBufferUsage().live_bytes);
  }
  EXPECT_LE(GetBufferUsage().cached_bytes, 2 * most + kMiB);
  // Sizes in use stay cached.
  const std::byte* const last = AllocateBuffer(64 * kMiB).get();
  EXPECT_EQ(AllocateBuffer(64 * kMiB).get(), last);
  TrimBufferCache();
}

// A freed gradient's block stays cached while its weights live, and no longer.
// Blocks of these sizes are never touched, so they cost no memory.
TEST(BufferTest, KeepsGradientsAsLongAsTheirWeights) {
  TrimBufferCache();
  constexpr size_t kGiB = size_t{1} << 30;
  {
    const auto weights = AllocateBuffer(3 * kGiB);
    for (int step = 0; step < 2; ++step) {
      AllocateBuffer(3 * kGiB);
      EXPECT_EQ(GetBufferUsage().cached_bytes, 3 * kGiB);
    }
  }
  EXPECT_LE(GetBufferUsage().cached_bytes, kGiB);
}

// Live and cached bytes stay close to the peak of live bytes, even while other
// sizes are requested.
TEST(BufferTest, HoldsLittleMoreThanWasEverLive) {
  TrimBufferCache();
  constexpr size_t kGiB = size_t{1} << 30;
  const auto weights = AllocateBuffer(4 * kGiB);
  AllocateBuffer(4 * kGiB);
  const auto other = AllocateBuffer(3 * kGiB);
  const BufferUsage usage = GetBufferUsage();
  EXPECT_LE(usage.live_bytes + usage.cached_bytes, 9 * kGiB);
  TrimBufferCache();
}

TEST(BufferTest, ThreadsAllocateAndReturnAtTheSameTime) {
  const size_t before = GetBufferUsage().live_bytes;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 500; ++i) {
        const size_t bytes = 64 + 512 * (i % 5);
        const auto block = AllocateBuffer(bytes);
        std::memset(block.get(), t, bytes);
        EXPECT_EQ(block.get()[bytes - 1], static_cast<std::byte>(t));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(GetBufferUsage().live_bytes, before);
}

}  // namespace
}  // namespace gshard
