#include "services/partition/halo.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/base/random.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The values of a formula on each of `parts` partitions.
template <typename Form>
std::vector<int64_t> On(int64_t parts, const Form& form) {
  std::vector<int64_t> values;
  for (int64_t i = 0; i < parts; ++i) values.push_back(form.At(i));
  return values;
}

// Figure 11 of the paper.
TEST(HaloTest, Figure11) {
  ASSERT_OK_AND_ASSIGN(
      const HaloPlan plan,
      PlanHalo({.base = 12,
                .window = {.size = 3, .stride = 2, .pad_low = 1, .pad_high = 1},
                .parts = 4}));
  EXPECT_EQ(plan.base_shard, 3);
  EXPECT_EQ(plan.result_count, 6);
  EXPECT_EQ(plan.result_shard, 2);
  EXPECT_THAT(On(4, plan.start), ElementsAre(-1, 3, 7, 11));
  EXPECT_THAT(On(4, plan.limit), ElementsAre(4, 8, 12, 16));
  EXPECT_THAT(On(4, plan.left_halo), ElementsAre(1, 0, -1, -2));
  EXPECT_THAT(On(4, plan.right_halo), ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(plan.left, 1);
  EXPECT_EQ(plan.right, 4);
  EXPECT_EQ(plan.slice_size, 5);
  EXPECT_THAT(On(4, plan.slice_start), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(plan.left_hops, 1);
  EXPECT_EQ(plan.right_hops, 2);
  EXPECT_FALSE(plan.masks);
  EXPECT_EQ(plan.dilation_case, DilationCase::kAligned);
  EXPECT_EQ(plan.local, (Window{.size = 3, .stride = 2}));
  EXPECT_EQ(plan.local_count, 2);
}

// Figure 13: parts start at different zeros of a base dilation of 3.
TEST(HaloTest, Figure13) {
  ASSERT_OK_AND_ASSIGN(
      const HaloPlan results,
      PlanHalo({.base = 5,
                .window = {.size = 3, .pad_high = 1, .base_dilation = 3},
                .parts = 3}));
  EXPECT_EQ(results.dilation_case, DilationCase::kShiftResults);
  EXPECT_THAT(On(3, results.shift), ElementsAre(2, 0, 1));
  EXPECT_EQ(results.result_shard, 4);
  EXPECT_EQ(results.local_count, 6);

  ASSERT_OK_AND_ASSIGN(
      const HaloPlan window,
      PlanHalo({.base = 5,
                .window = {.size = 3, .stride = 2, .base_dilation = 3},
                .parts = 3}));
  EXPECT_EQ(window.dilation_case, DilationCase::kShiftWindow);
  EXPECT_THAT(On(3, window.shift), ElementsAre(2, 0, 1));
  EXPECT_EQ(window.local.size, 5);
  EXPECT_EQ(window.local_count, 2);
}

TEST(HaloTest, MaskOf15In2) {
  ASSERT_OK_AND_ASSIGN(const HaloPlan plan, PlanHalo({.base = 15, .parts = 2}));
  EXPECT_EQ(plan.base_shard, 8);
  EXPECT_TRUE(plan.masks);
  EXPECT_THAT(On(2, plan.own_valid), ElementsAre(15, 7));
  EXPECT_EQ(plan.fetch_left + plan.fetch_right, 0);
}

TEST(HaloTest, ReshapeOf3By2To6In2) {
  ASSERT_OK_AND_ASSIGN(const HaloPlan plan,
                       PlanHalo(ReshapeHalo(6, /*base_shard=*/4,
                                            /*result_shard=*/3, 2)));
  EXPECT_THAT(On(2, plan.start), ElementsAre(0, 3));
  EXPECT_THAT(On(2, plan.limit), ElementsAre(3, 6));
  // One element moves to the right.
  EXPECT_EQ(plan.fetch_left, 1);
  EXPECT_EQ(plan.fetch_right, 0);
  EXPECT_THAT(On(2, plan.slice_start), ElementsAre(1, 0));
  EXPECT_EQ(plan.slice_size, 3);
}

TEST(HaloTest, ReverseOf5In2) {
  ASSERT_OK_AND_ASSIGN(const HaloPlan plan, PlanHalo(ReverseHalo(5, 2)));
  // The parts, reversed and exchanged, are [pad, 4, 3] and [2, 1, 0].
  EXPECT_EQ(plan.result_shard, 3);
  EXPECT_THAT(On(2, plan.start), ElementsAre(1, 4));
  EXPECT_EQ(plan.fetch_left, 0);
  EXPECT_EQ(plan.fetch_right, 1);
  EXPECT_THAT(On(2, plan.slice_start), ElementsAre(1, 1));
  EXPECT_EQ(plan.slice_size, 3);
  EXPECT_FALSE(plan.masks);
}

// Draws a request of small numbers.
HaloRequest RandomRequest(uint64_t seed) {
  uint64_t draws = 0;
  const auto draw = [&](int64_t low, int64_t high) {
    return low +
           static_cast<int64_t>(RandomBelow(seed, draws++, high - low + 1));
  };
  HaloRequest request = {.base = draw(1, 20),
                         .window = {.size = draw(1, 5),
                                    .stride = draw(1, 4),
                                    .pad_low = draw(-4, 9),
                                    .pad_high = draw(-4, 9),
                                    .base_dilation = draw(1, 4),
                                    .window_dilation = draw(1, 3)},
                         .parts = draw(1, 7)};
  const int64_t n = request.parts;
  if (draw(0, 3) == 0) request.base_shard = (request.base - 1) / n + draw(1, 3);
  const int64_t results = WindowCount(request.base, request.window);
  if (draw(0, 3) == 0 && results > 0) {
    request.result_shard = (results - 1) / n + draw(1, 3);
  }
  return request;
}

// The first element at or after the first position that partition i's windows
// see, and one past the last element at or before the last such position.
struct Range {
  int64_t start, limit;
};
Range SeenRange(const HaloRequest& request, int64_t result_shard, int64_t i) {
  const Window& w = request.window;
  std::optional<int64_t> first, last;
  for (int64_t p = i * result_shard; p < (i + 1) * result_shard; ++p) {
    for (int64_t k = 0; k < w.size; ++k) {
      const int64_t at = p * w.stride + k * w.window_dilation - w.pad_low;
      first = std::min(first.value_or(at), at);
      last = std::max(last.value_or(at), at);
    }
  }
  Range range = {-100, -100};
  while (range.start * w.base_dilation < *first) ++range.start;
  while (range.limit * w.base_dilation <= *last) ++range.limit;
  return range;
}

TEST(HaloTest, FormulasAreThoseOfEveryPartition) {
  int checked = 0;
  for (uint64_t seed = 0; seed < 6000; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    const HaloRequest request = RandomRequest(seed);
    const auto planned = PlanHalo(request);
    if (WindowCount(request.base, request.window) == 0) {
      EXPECT_FALSE(planned.ok());
      continue;
    }
    ASSERT_OK(planned);
    const HaloPlan& plan = *planned;
    ++checked;
    int64_t left = 0, right = 0, size = 0, max_shift = 0, least_shift = 1000;
    for (int64_t i = 0; i < request.parts; ++i) {
      const Range seen = SeenRange(request, plan.result_shard, i);
      ASSERT_EQ(plan.start.At(i), seen.start);
      ASSERT_EQ(plan.limit.At(i), seen.limit);
      const int64_t own = i * plan.base_shard;
      ASSERT_EQ(plan.left_halo.At(i), own - seen.start);
      ASSERT_EQ(plan.right_halo.At(i), seen.limit - own - plan.base_shard);
      ASSERT_EQ(plan.slice_start.At(i), seen.start - own + plan.left);
      ASSERT_EQ(plan.own_valid.At(i), request.base - own);
      ASSERT_EQ(plan.valid_begin.At(i), -seen.start);
      ASSERT_EQ(plan.valid_end.At(i), request.base - seen.start);
      left = std::max(left, own - seen.start);
      right = std::max(right, seen.limit - own - plan.base_shard);
      size = std::max(size, seen.limit - seen.start);
      max_shift = std::max(max_shift, plan.shift.At(i));
      least_shift = std::min(least_shift, plan.shift.At(i));
      // The slice lies within the elements that the partition holds.
      EXPECT_GE(plan.slice_start.At(i), 0);
      EXPECT_LE(plan.slice_start.At(i) + plan.slice_size,
                plan.zeros_left + plan.fetch_left + plan.base_shard +
                    plan.fetch_right + plan.zeros_right);
    }
    EXPECT_EQ(plan.left, left);
    EXPECT_EQ(plan.right, right);
    EXPECT_EQ(plan.slice_size, size);
    EXPECT_EQ(plan.max_shift, max_shift);
    EXPECT_EQ(least_shift, 0);
    EXPECT_LE(plan.left_hops, request.parts - 1);
    EXPECT_LE(plan.right_hops, request.parts - 1);
    EXPECT_EQ(WindowCount(plan.slice_size, plan.local), plan.local_count);
  }
  EXPECT_GT(checked, 3000);
}

TEST(HaloTest, ManyPartsAndLargeSizes) {
  const int64_t base = int64_t{1} << 38;
  const HaloRequest request = {
      .base = base,
      .window = {.size = 3, .pad_low = 1, .pad_high = 1, .base_dilation = 3},
      .parts = int64_t{1} << 20};
  ASSERT_OK_AND_ASSIGN(const HaloPlan plan, PlanHalo(request));
  EXPECT_EQ(plan.base_shard, base >> 20);
  EXPECT_EQ(plan.result_count, 3 * base - 2);
  EXPECT_EQ(plan.result_shard, 3 * (base >> 20));
  EXPECT_EQ(plan.left_halo.multiplier, 0);
  EXPECT_EQ(plan.left_halo.At(request.parts - 1), 0);
  EXPECT_EQ(plan.left, 0);
  EXPECT_EQ(plan.right, 1);
}

TEST(HaloTest, SaysWhatIsWrong) {
  const struct {
    HaloRequest request;
    std::string message;
  } cases[] = {
      {{.base = 4, .parts = 0}, "'parts' must lie in [1, 1048576], got 0"},
      {{.base = 0, .parts = 2}, "got 0 elements and 0 results"},
      {{.base = 2, .window = {.size = 3}, .parts = 2},
       "got 2 elements and 0 results"},
      {{.base = 4, .window = {.stride = 0}, .parts = 2}, "'stride' must lie"},
      {{.base = 4, .parts = 2, .base_shard = 1},
       "'base_shard' of 2 parts must hold 4 elements, got 1"},
      {{.base = 4, .parts = 2, .result_shard = -1},
       "'result_shard' of 2 parts must hold 4 elements, got -1"},
      {{.base = kMaxWindowSize, .window = {.pad_low = 1}, .parts = 2},
       "'size of the result' must lie in"},
      {{.base = kMaxWindowSize,
        .window = {.stride = 2, .pad_low = 1},
        .parts = 2},
       "must extend over at most 1099511627776 elements, got 1099511627777"},
  };
  for (const auto& c : cases) {
    EXPECT_THAT(
        PlanHalo(c.request),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(c.message)));
  }
}

}  // namespace
}  // namespace gshard
