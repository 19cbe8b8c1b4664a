#include "services/trace/otlp_headers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(OtlpHeadersTest, AreThoseOfTheEnvironment) {
  const auto parsed = [](absl::string_view text) {
    return ParseOtlpHeaders(text).value();
  };
  EXPECT_THAT(parsed(""), IsEmpty());
  EXPECT_THAT(parsed(" ,\n\r\n ,"), IsEmpty());
  EXPECT_THAT(parsed("api-key=abc"), ElementsAre("api-key: abc"));
  EXPECT_THAT(parsed(" a = b , c=d"), ElementsAre("a: b", "c: d"));
  EXPECT_THAT(parsed("a=b\r\nc=d\n"), ElementsAre("a: b", "c: d"));
  EXPECT_THAT(parsed("Authorization=Basic%20dXNlcjpwYXNz=="),
              ElementsAre("Authorization: Basic dXNlcjpwYXNz=="));
  EXPECT_THAT(parsed("a=x%2Cy%25+z;q"), ElementsAre("a: x,y%+z;q"));
}

// An error identifies a bad header by its number: no text of a header may be
// logged.
TEST(OtlpHeadersTest, WhatIsWrongIsToldByItsNumber) {
  for (const char* text :
       {"s3cret", "=s3cret", "a=", "a=%20", "a b=s3cret", "a:=s3cret",
        "\xC3\xA4=s3cret", "a=s3cret\xC3\xA4", "a=s3cret%", "a=s3cret%2",
        "a=s3cret%2x", "a=s3cret%0Ab: c", "a=s3cret%0D%0Ab: c", "a=s3cret%00",
        "a=s3cret\tb", "Content-Type=s3cret", "content-length=7",
        "Transfer-Encoding=s3cret"}) {
    EXPECT_THAT(
        ParseOtlpHeaders(absl::StrCat("good=s3cret,", text)),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 AllOf(HasSubstr("number 2: "), Not(HasSubstr("s3cret")))))
        << text;
  }
}

TEST(OtlpHeadersTest, AreBounded) {
  std::string most;
  for (size_t i = 0; i < kMaxOtlpHeaders; ++i) absl::StrAppend(&most, "a=b\n");
  EXPECT_OK(ParseOtlpHeaders(most));
  EXPECT_THAT(ParseOtlpHeaders(most + "a=b"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("expected at most 32")));
  EXPECT_THAT(ParseOtlpHeaders("a=" + std::string(kMaxOtlpHeaderBytes, 'b')),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("8192 bytes, got 8194")));
}

}  // namespace
}  // namespace gshard
