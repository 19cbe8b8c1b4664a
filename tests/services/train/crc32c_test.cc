#include "services/train/crc32c.h"

#include <gtest/gtest.h>

#include <string>

namespace gshard {
namespace {

// Known answers of RFC 3720, appendix B.4, and the check value of the CRC
// catalogue.
TEST(Crc32cTest, KnownAnswers) {
  EXPECT_EQ(Crc32c(""), 0u);
  EXPECT_EQ(Crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62A8AB43u);
  std::string rising;
  for (char c = 0; c < 32; ++c) rising.push_back(c);
  EXPECT_EQ(Crc32c(rising), 0x46DD794Eu);
}

TEST(Crc32cTest, MaskIsRotateAndAdd) {
  EXPECT_EQ(MaskedCrc32c(""), 0xA282EAD8u);
  // 0xE3069283 rotated right by 15 is 0x2507C60D.
  EXPECT_EQ(MaskedCrc32c("123456789"), 0x2507C60Du + 0xA282EAD8u);
}

}  // namespace
}  // namespace gshard
