#include "router/admission/shedding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace gshard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A sentence of `request`, which arrived at second `arrival`.
WaitingSentence Of(uint64_t request, int arrival) {
  return {.caller = {},
          .request = request,
          .cost = {},
          .arrival = std::chrono::steady_clock::time_point(
              std::chrono::seconds(arrival))};
}

TEST(SheddingTest, TheYoungerHalfOfTheRequestsGoes) {
  EXPECT_THAT(RequestsToShed({}), IsEmpty());
  EXPECT_THAT(RequestsToShed({Of(1, 5)}), ElementsAre(1));
  EXPECT_THAT(RequestsToShed({Of(1, 9), Of(2, 5)}), ElementsAre(1));
  EXPECT_THAT(RequestsToShed({Of(1, 5), Of(2, 5)}), ElementsAre(2));
  EXPECT_THAT(RequestsToShed({Of(1, 3), Of(2, 1), Of(3, 2)}),
              ElementsAre(1, 3));
  // Requests count, not their sentences.
  EXPECT_THAT(RequestsToShed({Of(1, 1), Of(1, 1), Of(1, 1), Of(2, 2)}),
              ElementsAre(2));
}

}  // namespace
}  // namespace gshard
