#include "services/base/amount_text.h"

#include <gtest/gtest.h>

namespace gshard {
namespace {

TEST(AmountTextTest, DigitsStandInThrees) {
  EXPECT_EQ(GroupedText(0), "0");
  EXPECT_EQ(GroupedText(999), "999");
  EXPECT_EQ(GroupedText(1000), "1,000");
  EXPECT_EQ(GroupedText(619366318080), "619,366,318,080");
  EXPECT_EQ(GroupedText(-100), "-100");
  EXPECT_EQ(GroupedText(-1234), "-1,234");
}

TEST(AmountTextTest, BytesComeInTheLargestUnitThatFits) {
  EXPECT_EQ(BytesText(0), "0 B");
  EXPECT_EQ(BytesText(1023), "1023 B");
  EXPECT_EQ(BytesText(1024), "1.00 KiB");
  EXPECT_EQ(BytesText(int64_t{9} << 28), "2.25 GiB");
  EXPECT_EQ(BytesText(INT64_MAX), "8192.00 PiB");
}

}  // namespace
}  // namespace gshard
