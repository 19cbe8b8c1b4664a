#include "services/cluster/placement_bundles.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "services/base/random.h"

namespace gshard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Bundles = std::vector<std::vector<int32_t>>;

TEST(PlanBundlesTest, LoadsOnlyWhatIsNew) {
  const BundleChange change = PlanBundles(Bundles{{0, 1, 2}}, {0, 1, 2, 7});
  EXPECT_THAT(change.keep, ElementsAre(true));
  EXPECT_THAT(change.load, ElementsAre(7));
}

TEST(PlanBundlesTest, ABundleThatIsNotWantedAsAWholeGoes) {
  const BundleChange change = PlanBundles(Bundles{{0, 1, 2}, {5}}, {0, 1, 5});
  EXPECT_THAT(change.keep, ElementsAre(false, true));
  EXPECT_THAT(change.load, ElementsAre(0, 1));
}

TEST(PlanBundlesTest, WhatAnotherBundleHasGoes) {
  const BundleChange change = PlanBundles(Bundles{{1}, {0, 1}}, {0, 1});
  EXPECT_THAT(change.keep, ElementsAre(false, true));
  EXPECT_THAT(change.load, IsEmpty());
}

TEST(PlanBundlesTest, TooManyBundlesBecomeOne) {
  const BundleChange change = PlanBundles(Bundles{{0}, {1}, {2}}, {0, 1, 2, 3});
  EXPECT_THAT(change.keep, ElementsAre(false, false, false));
  EXPECT_THAT(change.load, ElementsAre(0, 1, 2, 3));
}

TEST(PlanBundlesTest, HoldsWhatIsWantedOnceForAnyBundles) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(seed);
    const auto draw = [&](uint64_t i, uint64_t n) {
      return RandomBelow(seed, i, n);
    };
    Bundles held(draw(0, 5));
    std::vector<int32_t> wanted;
    for (int32_t e = 0; e < 12; ++e) {
      if (draw(100 + e, 2) == 0) wanted.push_back(e);
      for (size_t p = 0; p < held.size(); ++p) {
        if (draw(1000 * (p + 1) + e, 4) == 0) held[p].push_back(e);
      }
    }
    const BundleChange change = PlanBundles(held, wanted);
    std::vector<int32_t> all = change.load;
    size_t bundles = !change.load.empty();
    for (size_t p = 0; p < held.size(); ++p) {
      if (!change.keep[p]) continue;
      all.insert(all.end(), held[p].begin(), held[p].end());
      ++bundles;
    }
    std::sort(all.begin(), all.end());
    EXPECT_EQ(all, wanted);
    EXPECT_LE(bundles, kMaxBundles);
    // A second plan, from the result, loads nothing more.
    Bundles after;
    if (!change.load.empty()) after.push_back(change.load);
    for (size_t p = 0; p < held.size(); ++p) {
      if (change.keep[p]) after.push_back(held[p]);
    }
    EXPECT_THAT(PlanBundles(after, wanted).load, IsEmpty());
  }
}

}  // namespace
}  // namespace gshard
