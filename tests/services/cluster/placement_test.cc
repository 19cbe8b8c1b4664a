#include "services/cluster/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <vector>

namespace gshard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(PlaceTest, GivesTheFirstWorkersWhatDoesNotDivide) {
  EXPECT_THAT(Place(8, 3),
              ElementsAre(ElementsAre(0, 1, 2), ElementsAre(3, 4, 5),
                          ElementsAre(6, 7)));
}

TEST(PlaceTest, LeavesWorkersBeyondTheExpertsEmpty) {
  EXPECT_THAT(Place(2, 3),
              ElementsAre(ElementsAre(0), ElementsAre(1), IsEmpty()));
}

TEST(PlaceTest, PlacesTheExpertsOfADenseModelNowhere) {
  EXPECT_THAT(Place(0, 2), ElementsAre(IsEmpty(), IsEmpty()));
}

// For any sizes, the experts are placed in order, and their counts differ by at
// most one.
TEST(PlaceTest, IsEvenAndCompleteForAnySizes) {
  for (int32_t experts : {0, 1, 2, 7, 16, 100, 2047, 2048}) {
    for (int32_t workers : {1, 2, 3, 8, 100, 2048, 3000}) {
      SCOPED_TRACE(::testing::Message() << experts << " on " << workers);
      const ExpertLists lists = Place(experts, workers);
      EXPECT_EQ(std::ssize(lists), workers);
      size_t fewest = experts;
      size_t most = 0;
      int32_t next = 0;
      for (const std::vector<int32_t>& held : lists) {
        for (const int32_t expert : held) EXPECT_EQ(expert, next++);
        fewest = std::min(fewest, held.size());
        most = std::max(most, held.size());
      }
      EXPECT_EQ(next, experts);
      EXPECT_LE(most - fewest, 1u);
    }
  }
}

}  // namespace
}  // namespace gshard
