#include "services/tensor/bfloat16.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace gshard {
namespace {

BFloat16 Bits(uint32_t bits) { return {static_cast<uint16_t>(bits)}; }

bool IsNan(BFloat16 x) { return (x.bits & 0x7fff) > 0x7f80; }

// All 65536 values survive the conversion to float and back; NaNs become quiet.
TEST(BFloat16Test, EveryNumberComesBackFromFloat) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const BFloat16 x = Bits(bits);
    EXPECT_EQ(std::isnan(ToFloat(x)), IsNan(x)) << bits;
    const BFloat16 quiet = IsNan(x) ? Bits(bits | 0x40) : x;
    EXPECT_EQ(ToBFloat16(ToFloat(x)), quiet) << bits;
  }
}

// The middle between neighbours rounds to the even one, values next to the
// middle to the nearer one.
TEST(BFloat16Test, RoundsToTheNearestAndTiesToEven) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    if ((bits & 0x7fff) >= 0x7f80) continue;  // infinity or NaN
    const float middle =
        std::bit_cast<float>(bits << 16 | static_cast<uint32_t>(0x8000));
    const BFloat16 lower = Bits(bits), upper = Bits(bits + 1);
    EXPECT_EQ(ToBFloat16(middle), bits % 2 == 0 ? lower : upper) << bits;
    EXPECT_EQ(ToBFloat16(std::nextafterf(middle, 0.0f)), lower) << bits;
    const float away = middle < 0 ? -std::numeric_limits<float>::infinity()
                                  : std::numeric_limits<float>::infinity();
    EXPECT_EQ(ToBFloat16(std::nextafterf(middle, away)), upper) << bits;
  }
}

TEST(BFloat16Test, WhatIsTooLargeIsInfinite) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(ToFloat(ToBFloat16(std::numeric_limits<float>::max())), infinity);
  EXPECT_EQ(ToFloat(ToBFloat16(-std::numeric_limits<float>::max())), -infinity);
  EXPECT_EQ(ToFloat(ToBFloat16(infinity)), infinity);
}

// NaNs stay NaNs with their sign and become quiet, even one whose only mantissa
// bits would be cut off.
TEST(BFloat16Test, NansStayNansAndQuiet) {
  for (const uint32_t bits : {0x7f800001u, 0x7fffffffu, 0x7fc00000u,
                              0xff800001u, 0xffffffffu, 0x7fa12345u}) {
    const BFloat16 x = ToBFloat16(std::bit_cast<float>(bits));
    EXPECT_TRUE(IsNan(x)) << bits;
    EXPECT_NE(x.bits & 0x40, 0) << bits;
    EXPECT_EQ(x.bits >> 15, bits >> 31) << bits;
  }
}

}  // namespace
}  // namespace gshard
