#include "services/ops/paged_attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "services/base/random.h"
#include "tests/reference/paged_attention.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

constexpr int64_t S = 9, P = 4, T = 3, N = 2, D = 5;

// Rows with random pages of a random cache; some share the previous row's.
struct Case {
  explicit Case(uint64_t seed)
      : R(1 + RandomBelow(seed, 0, 7)),
        q(RandomTensor({R, 1, N, D}, seed + 1)),
        keys(RandomTensor({S, P, N, D}, seed + 2)),
        values(RandomTensor({S, P, N, D}, seed + 3)),
        pages(ElementType::kInt32, {R, T}),
        lengths(ElementType::kInt32, {R}) {
    for (int64_t r = 0; r < R; ++r) {
      const bool shares = r > 0 && RandomBelow(seed, 100 + r, 2) == 0;
      lengths.i32()[r] =
          shares ? lengths.i32()[r - 1] : RandomBelow(seed, 200 + r, T * P + 1);
      for (int64_t t = 0; t < T; ++t) {
        pages.i32()[r * T + t] = shares ? pages.i32()[(r - 1) * T + t]
                                        : RandomBelow(seed, 300 + r * T + t, S);
      }
    }
  }

  int64_t R;
  Tensor q, keys, values, pages, lengths;
};

TEST(PagedAttentionTest, EqualsTheReference) {
  for (uint64_t seed = 0; seed < 200; seed += 10) {
    const Case c(seed);
    EXPECT_TRUE(TensorNear(
        PagedAttention(c.q, c.keys, c.values, c.pages, c.lengths, 0.4f),
        reference::PagedAttention(c.q, c.keys, c.values, c.pages, c.lengths,
                                  0.4f),
        1e-5))
        << "seed " << seed;
  }
}

// A row depends on its keys, not on their pages, other rows or later keys.
TEST(PagedAttentionTest, WhereKeysLieDoesNotMatter) {
  for (uint64_t seed = 0; seed < 200; seed += 10) {
    const Case c(seed);
    const Tensor all =
        PagedAttention(c.q, c.keys, c.values, c.pages, c.lengths, 0.4f);
    for (int64_t r = 0; r < c.R; ++r) {
      // One page for each position, in order; everything else is NaN.
      Tensor k(ElementType::kFloat32, {T * P + 1, 1, N, D});
      std::fill_n(k.f32(), k.size(), NAN);
      Tensor v = k.Clone();
      Tensor pages(ElementType::kInt32, {1, T * P});
      for (int64_t j = 0; j < T * P; ++j) {
        const bool seen = j < c.lengths.i32()[r];
        pages.i32()[j] = static_cast<int32_t>(seen ? j : T * P);
        if (!seen) continue;
        const int64_t from = c.pages.i32()[r * T + j / P] * P + j % P;
        std::copy_n(c.keys.f32() + from * N * D, N * D, k.f32() + j * N * D);
        std::copy_n(c.values.f32() + from * N * D, N * D, v.f32() + j * N * D);
      }
      EXPECT_TRUE(TensorEqual(all.Rows(r, r + 1),
                              PagedAttention(c.q.Rows(r, r + 1), k, v, pages,
                                             c.lengths.Rows(r, r + 1), 0.4f)))
          << "seed " << seed << ", row " << r;
    }
  }
}

TEST(PagedAttentionTest, PagesAndLengthsOutsideAreRefused) {
  const auto check = [](std::vector<int32_t> pages,
                        std::vector<int32_t> lengths) {
    const int64_t R = static_cast<int64_t>(lengths.size());
    return CheckPages(Tensor::Ints({R, 2}, pages), Tensor::Ints({R}, lengths),
                      S, P);
  };
  EXPECT_OK(check({8, 0, 5, 77}, {8, 4}));
  EXPECT_OK(check({-1, 77}, {0}));
  EXPECT_THAT(check({8, 9}, {5}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       ::testing::HasSubstr("[0, 9), got 9")));
  EXPECT_THAT(check({-1, 0}, {1}), StatusIs(absl::StatusCode::kInvalidArgument,
                                            ::testing::HasSubstr("got -1")));
  EXPECT_THAT(check({0, 0}, {9}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       ::testing::HasSubstr("[0, 8], got 9")));
  EXPECT_THAT(check({0, 0}, {-1}), StatusIs(absl::StatusCode::kInvalidArgument,
                                            ::testing::HasSubstr("got -1")));
}

}  // namespace
}  // namespace gshard
