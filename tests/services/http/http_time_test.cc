#include "services/http/http_time.h"

#include <gtest/gtest.h>

#include <string>

namespace gshard {
namespace {

constexpr char kTime[] = "Sun, 06 Nov 1994 08:49:37 GMT";
const absl::Time now = absl::FromUnixSeconds(784111777);

TEST(HttpTimeTest, IsThatOfTheStandard) {
  EXPECT_EQ(ParseHttpTime(kTime), now);
  for (const char* text :
       {"", "784111777", "Sun, 06 Nov 1994 08:49:37", "1994-11-06T08:49:37Z",
        "Sun, 36 Nov 1994 08:49:37 GMT", "inf", "infinite-future"}) {
    EXPECT_EQ(ParseHttpTime(text), absl::InfinitePast()) << text;
  }
}

TEST(HttpTimeTest, RetryAfterIsSecondsOrATime) {
  EXPECT_EQ(ParseRetryAfter("0", now), absl::ZeroDuration());
  EXPECT_EQ(ParseRetryAfter("120", now), absl::Seconds(120));
  EXPECT_EQ(ParseRetryAfter(std::string(1000, '9'), now),
            absl::InfiniteDuration());
  EXPECT_EQ(ParseRetryAfter(kTime, now - absl::Seconds(5)), absl::Seconds(5));
  EXPECT_EQ(ParseRetryAfter(kTime, now + absl::Seconds(5)),
            absl::ZeroDuration());
  for (const char* text : {"", "-1", "1.5", "1s", " 1", "soon", "0x10"}) {
    EXPECT_EQ(ParseRetryAfter(text, now), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace gshard
