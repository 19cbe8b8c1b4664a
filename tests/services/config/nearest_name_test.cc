#include "services/config/nearest_name.h"

#include <gtest/gtest.h>

namespace gshard {
namespace {

TEST(NearestNameTest, FindsTheNameThatWasMeant) {
  EXPECT_EQ(NearestName("baem", {"listen", "beam", "beams"}), "beam");
  EXPECT_EQ(NearestName("beam", {"beams", "beam"}), "beam");
  EXPECT_EQ(NearestName("", {"up"}), "up");
}

TEST(NearestNameTest, AnotherWordIsNotMeant) {
  EXPECT_EQ(NearestName("something", {"beam", "listen"}), std::nullopt);
  EXPECT_EQ(NearestName("beam", {}), std::nullopt);
}

}  // namespace
}  // namespace gshard
