#include "services/ops/window.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "services/base/random.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

TEST(WindowTest, Dilated) {
  EXPECT_EQ(Dilated(0, 3), 0);
  EXPECT_EQ(Dilated(1, 3), 1);
  EXPECT_EQ(Dilated(4, 3), 10);
}

TEST(WindowTest, CountsByHand) {
  EXPECT_EQ(WindowCount(7, {.size = 3}), 5);
  EXPECT_EQ(WindowCount(7, {.size = 3, .stride = 2}), 3);
  EXPECT_EQ(
      WindowCount(12, {.size = 3, .stride = 2, .pad_low = 1, .pad_high = 1}),
      6);
  EXPECT_EQ(WindowCount(4, {.size = 2, .base_dilation = 3}), 9);
  EXPECT_EQ(WindowCount(7, {.size = 3, .window_dilation = 3}), 1);
  EXPECT_EQ(WindowCount(6, {.size = 3, .window_dilation = 3}), 0);
  EXPECT_EQ(WindowCount(5, {.pad_low = -2, .pad_high = -1}), 2);
  EXPECT_EQ(WindowCount(5, {.pad_low = -4, .pad_high = -4}), 0);
  EXPECT_EQ(WindowCount(0, {.size = 2, .pad_low = 1, .pad_high = 2}), 2);
}

// WindowCount counts the windows that lie within the padded base.
TEST(WindowTest, CountsWhatFits) {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    uint64_t draws = 0;
    const auto draw = [&](int64_t low, int64_t high) {
      return low +
             static_cast<int64_t>(RandomBelow(seed, draws++, high - low + 1));
    };
    const int64_t base = draw(0, 9);
    const Window w = {.size = draw(1, 4),
                      .stride = draw(1, 4),
                      .pad_low = draw(-3, 4),
                      .pad_high = draw(-3, 4),
                      .base_dilation = draw(1, 4),
                      .window_dilation = draw(1, 3)};
    int64_t end = -w.pad_low;  // of the padded base, relative to element 0
    for (int64_t i = 0; i < base; ++i) end = i * w.base_dilation + 1;
    if (base == 0) end = 0;
    end += w.pad_high;
    int64_t count = 0;
    while (count * w.stride - w.pad_low + (w.size - 1) * w.window_dilation <
           end) {
      ++count;
    }
    EXPECT_EQ(WindowCount(base, w), count) << "seed " << seed;
  }
}

TEST(WindowTest, IndicesByHand) {
  // The window moves over 0 a 0 b 0, where -1 stands for 0.
  const Window w = {.size = 3, .pad_low = 1, .pad_high = 1, .base_dilation = 2};
  ASSERT_EQ(WindowCount(2, w), 3);
  const int64_t expected[3][3] = {{-1, 0, -1}, {0, -1, 1}, {-1, 1, -1}};
  for (int p = 0; p < 3; ++p) {
    for (int k = 0; k < 3; ++k) {
      EXPECT_EQ(BaseIndex(2, w, p, k), expected[p][k]) << p << " " << k;
    }
  }
}

TEST(WindowTest, RefusesWhatCouldOverflow) {
  const struct {
    int64_t base;
    Window window;
    std::string message;
  } cases[] = {
      {-1, {}, "'base' must lie in [0, 1099511627776], got -1"},
      {1, {.size = 0}, "'window' must lie in [1, "},
      {1, {.stride = 0}, "'stride' must lie in [1, 1048576], got 0"},
      {1, {.base_dilation = 1 << 21}, "'base_dilation' must lie in [1, "},
      {1, {.window_dilation = -1}, "'window_dilation' must lie in [1, "},
      {1,
       {.pad_high = std::numeric_limits<int64_t>::min()},
       "'pad_high' must lie in [-"},
      {kMaxWindowSize,
       {.base_dilation = kMaxWindowStep},
       "'size of the result' must lie in [0, "},
  };
  for (const auto& c : cases) {
    EXPECT_THAT(
        CheckWindow(c.base, c.window),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(c.message)));
  }
  EXPECT_OK(CheckWindow(kMaxWindowSize,
                        {.size = kMaxWindowSize, .stride = kMaxWindowStep}));
}

}  // namespace
}  // namespace gshard
