#include "services/cluster/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(PlaceTest, GivesTheFirstWorkersWhatDoesNotDivide) {
  ASSERT_OK_AND_ASSIGN(const Placement placement, Place(8, 3, /*version=*/7));
  EXPECT_EQ(placement.version, 7);
  EXPECT_THAT(placement.experts_of_worker,
              ElementsAre(ElementsAre(0, 1, 2), ElementsAre(3, 4, 5),
                          ElementsAre(6, 7)));
}

TEST(PlaceTest, LeavesWorkersBeyondTheExpertsEmpty) {
  ASSERT_OK_AND_ASSIGN(const Placement placement, Place(2, 3, 0));
  EXPECT_THAT(placement.experts_of_worker,
              ElementsAre(ElementsAre(0), ElementsAre(1), IsEmpty()));
}

TEST(PlaceTest, PlacesTheExpertsOfADenseModelNowhere) {
  ASSERT_OK_AND_ASSIGN(const Placement placement, Place(0, 2, 0));
  EXPECT_THAT(placement.experts_of_worker, ElementsAre(IsEmpty(), IsEmpty()));
  EXPECT_OK(ValidatePlacement(placement, 0));
}

// For any sizes, the placement is valid, and expert counts differ by at most
// one.
TEST(PlaceTest, IsEvenAndCompleteForAnySizes) {
  for (int32_t experts : {0, 1, 2, 7, 16, 100, 2047, 2048}) {
    for (int32_t workers : {1, 2, 3, 8, 100, 2048, 3000}) {
      SCOPED_TRACE(::testing::Message() << experts << " on " << workers);
      ASSERT_OK_AND_ASSIGN(const Placement placement,
                           Place(experts, workers, 1));
      EXPECT_EQ(placement.num_workers(), workers);
      ASSERT_OK(ValidatePlacement(placement, experts));
      size_t fewest = experts;
      size_t most = 0;
      for (const auto& held : placement.experts_of_worker) {
        fewest = std::min(fewest, held.size());
        most = std::max(most, held.size());
      }
      EXPECT_LE(most - fewest, 1u);
    }
  }
}

TEST(PlaceTest, RefusesImpossibleSizes) {
  const auto invalid = [](const char* rest) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(rest));
  };
  EXPECT_THAT(Place(2049, 1, 0), invalid("0 to 2048 experts, got 2049"));
  EXPECT_THAT(Place(-1, 1, 0), invalid("0 to 2048 experts, got -1"));
  EXPECT_THAT(Place(4, 0, 0), invalid("1 to 65536 workers, got 0"));
  EXPECT_THAT(Place(4, 65537, 0), invalid("1 to 65536 workers, got 65537"));
  EXPECT_THAT(Place(4, 1, -1), invalid("version of at least 0, got -1"));
}

TEST(ValidatePlacementTest, AcceptsExpertsInAnyArrangement) {
  const Placement scattered = {.version = 3,
                               .experts_of_worker = {{1, 3}, {}, {0, 2}}};
  EXPECT_OK(ValidatePlacement(scattered, 4));
}

TEST(ValidatePlacementTest, NamesWhatIsWrongWithAPlacementFromElsewhere) {
  const struct {
    Placement placement;
    const char* message;
  } cases[] = {
      {{1, {{0, 1}, {1, 2, 3}}},
       "placement: expected expert 1 once, got it on workers 0 and 1"},
      {{1, {{0, 0, 1, 2, 3}}},
       "placement: expected expert 0 once, got it on workers 0 and 0"},
      {{1, {{0, 1}, {3}}},
       "placement: expected expert 2 on a worker, got it on none"},
      {{1, {{0, 1, 2, 3, 4}}},
       "placement: worker 0 expected experts below 4, got 4"},
      {{1, {{-1, 0, 1, 2, 3}}},
       "placement: worker 0 expected experts below 4, got -1"},
      {{1, {{0, 2, 1, 3}}},
       "placement: worker 0 expected experts in increasing order, got 1 after "
       "2"},
      {{1, {}}, "placement: expected 1 to 65536 workers, got 0"},
      {{-5, {{0, 1, 2, 3}}},
       "placement: expected a version of at least 0, got -5"},
  };
  for (const auto& bad : cases) {
    EXPECT_THAT(ValidatePlacement(bad.placement, 4),
                StatusIs(absl::StatusCode::kInvalidArgument, bad.message));
  }
}

}  // namespace
}  // namespace gshard
