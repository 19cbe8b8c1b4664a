#include "services/decoding/page_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "services/base/random.h"

namespace gshard {
namespace {

TEST(PagePoolTest, TakesTheLowestFreePage) {
  PagePool pool(4);
  EXPECT_EQ(pool.Take(), 0);
  EXPECT_EQ(pool.Take(), 1);
  EXPECT_EQ(pool.Take(), 2);
  pool.Release(0);
  pool.Release(1);
  EXPECT_EQ(pool.in_use(), 1);
  EXPECT_EQ(pool.Take(), 0);
  EXPECT_EQ(pool.Take(), 1);
  EXPECT_EQ(pool.Take(), 3);
  EXPECT_EQ(pool.in_use(), 4);
}

TEST(PagePoolTest, APageIsFreeWhenItsLastHolderReleasesIt) {
  PagePool pool(1);
  const int32_t page = pool.Take();
  EXPECT_FALSE(pool.shared(page));
  pool.Share(page);
  pool.Share(page);
  pool.Release(page);
  EXPECT_TRUE(pool.shared(page));
  pool.Release(page);
  EXPECT_FALSE(pool.shared(page));
  EXPECT_EQ(pool.in_use(), 1);
  pool.Release(page);
  EXPECT_EQ(pool.in_use(), 0);
  EXPECT_EQ(pool.Take(), page);
}

// After any operations, pages in use and shared are those of a map of holders.
TEST(PagePoolTest, CountsHoldersWhateverTheOrder) {
  PagePool pool(20);
  std::map<int32_t, int> holders;
  int64_t most = 0;
  for (uint64_t i = 0; i < 5000; ++i) {
    const int64_t action = RandomBelow(1, i, 3);
    if (action == 0 && holders.size() < 20) {
      const int32_t page = pool.Take();
      ASSERT_EQ(holders.count(page), 0u);
      holders[page] = 1;
      most = std::max<int64_t>(most, holders.size());
      ASSERT_LT(page, most);
    } else if (action > 0 && !holders.empty()) {
      const auto it =
          std::next(holders.begin(), RandomBelow(2, i, holders.size()));
      if (action == 1 && it->second < 3) {
        pool.Share(it->first);
        ++it->second;
      } else {
        pool.Release(it->first);
        if (--it->second == 0) holders.erase(it);
      }
    }
    ASSERT_EQ(pool.in_use(), static_cast<int64_t>(holders.size()));
    for (const auto& [page, count] : holders) {
      ASSERT_EQ(pool.shared(page), count > 1);
    }
  }
}

}  // namespace
}  // namespace gshard
