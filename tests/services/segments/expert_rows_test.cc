#include "services/segments/expert_rows.h"

#include <numeric>

#include "services/base/random.h"
#include "services/ops/cast.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ExpertRowsTest, NeighboursAreOneRange) {
  // Expert 1 has no rows, so those of 0 and 2 touch.
  ASSERT_OK_AND_ASSIGN(const ExpertRows rows,
                       ExpertRows::Create(Tensor::Ints({5}, {2, 0, 1, 3, 0})));
  EXPECT_EQ(rows.total(), 6);
  EXPECT_THAT(rows.RangesOf({0, 2}), ElementsAre(RowRange{0, 3}));
  EXPECT_THAT(rows.RangesOf({0, 3}),
              ElementsAre(RowRange{0, 2}, RowRange{3, 6}));
  EXPECT_THAT(rows.RangesOf({1, 4}), ElementsAre());
}

TEST(ExpertRowsTest, PuttingIsTheInverseOfTaking) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const int64_t E = 1 + RandomBelow(seed, 0, 9);
    const int64_t W = 1 + RandomBelow(seed, 1, 5);
    std::vector<int32_t> sizes;
    std::vector<std::vector<int32_t>> held(W);
    for (int64_t e = 0; e < E; ++e) {
      sizes.push_back(RandomBelow(seed, 10 + e, 4));
      held[RandomBelow(seed, 100 + e, W)].push_back(e);
    }
    const int64_t R = std::accumulate(sizes.begin(), sizes.end(), 0);
    ASSERT_OK_AND_ASSIGN(const ExpertRows rows,
                         ExpertRows::Create(Tensor::Ints({E}, sizes)));
    Tensor whole = RandomTensor({R, 3}, seed);
    if (seed % 2 == 1) whole = Cast(whole, ElementType::kBFloat16);
    Tensor merged = Tensor::Zeros(whole.type(), whole.dims());
    for (const std::vector<int32_t>& experts : held) {
      const std::vector<RowRange> ranges = rows.RangesOf(experts);
      ASSERT_OK_AND_ASSIGN(const Tensor part, TakeRows(whole, R, ranges));
      EXPECT_EQ(part.dim(0), CountRows(ranges));
      PutRows(part, ranges, merged);
    }
    EXPECT_TRUE(TensorEqual(merged, whole)) << "seed " << seed;
  }
}

TEST(ExpertRowsTest, RefusesWrongGroupSizes) {
  EXPECT_THAT(ExpertRows::Create(Tensor::Floats({2}, {1, 1})),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("must be i32[E], got f32[2]")));
  EXPECT_THAT(
      ExpertRows::Create(Tensor::Ints({1, 2}, {1, 1})),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("got i32[1, 2]")));
  EXPECT_THAT(ExpertRows::Create(Tensor::Ints({2}, {1, -1})),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("got -1 for expert 1")));
}

}  // namespace
}  // namespace gshard
