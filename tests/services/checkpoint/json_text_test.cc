#include "services/checkpoint/json_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

TEST(JsonTextTest, ReadsWhatItWrites) {
  const std::string text =
      R"({"a":[1,-2,2.5,true,null,{"b":"\u00e9\n"}],"c":{}})";
  ASSERT_OK_AND_ASSIGN(const auto value, ParseJsonObject(text, {}));
  EXPECT_EQ(value["a"][1], -2);
  EXPECT_EQ(value["a"][5]["b"], "\u00e9\n");
  ASSERT_OK_AND_ASSIGN(const auto again,
                       ParseJsonObject(FormatJson(value), {}));
  EXPECT_EQ(value, again);
}

TEST(JsonTextTest, RefusesWhatIsNotOneObject) {
  for (const char* text : {"", "{", "[]", "3", "{} {}", "{\"a\":1,}", "{a:1}",
                           "{\"a\":1e999}", "{\"a\":NaN}", "{\"a\":\"\xff\"}",
                           "{\"a\":\"\\ud800\"}", "null", "{\"a\""}) {
    EXPECT_THAT(ParseJsonObject(text, {}),
                StatusIs(absl::StatusCode::kDataLoss,
                         HasSubstr("expected a JSON object")))
        << text;
  }
}

TEST(JsonTextTest, RefusesAKeyThatOccursTwice) {
  EXPECT_THAT(ParseJsonObject(R"({"a":1,"b":{"a":2},"a":3})", {}),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("the key 'a' occurs twice")));
  EXPECT_THAT(ParseJsonObject(R"({"x":[{"k":1,"\u006b":2}]})", {}),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("the key 'k' occurs twice")));
  ASSERT_OK(ParseJsonObject(R"({"a":{"a":[{"a":1},{"a":2}]}})", {}));
}

TEST(JsonTextTest, HoldsItsLimits) {
  EXPECT_THAT(
      ParseJsonObject(R"({"a":[[]]})", {.max_depth = 2}),
      StatusIs(absl::StatusCode::kDataLoss, HasSubstr("nested deeper than 2")));
  ASSERT_OK(ParseJsonObject(R"({"a":[[]]})", {.max_depth = 3}));
  EXPECT_THAT(
      ParseJsonObject(R"({"a":[1,2,3]})", {.max_values = 4}),
      StatusIs(absl::StatusCode::kDataLoss, HasSubstr("over 4 values")));
  ASSERT_OK(ParseJsonObject(R"({"a":[1,2,3]})", {.max_values = 5}));
  const std::string deep = absl::StrCat("{\"a\":", std::string(1000000, '['));
  EXPECT_THAT(
      ParseJsonObject(deep, {}),
      StatusIs(absl::StatusCode::kDataLoss, HasSubstr("nested deeper than 8")));
}

TEST(JsonTextTest, MembersNameTheirKey) {
  ASSERT_OK_AND_ASSIGN(
      const auto value,
      ParseJsonObject(R"({"n":7,"m":-1,"big":9223372036854775808,"s":"x"})",
                      {}));
  ASSERT_OK_AND_ASSIGN(const int64_t n, JsonCount(value, "n"));
  EXPECT_EQ(n, 7);
  ASSERT_OK_AND_ASSIGN(const std::string s, JsonString(value, "s"));
  EXPECT_EQ(s, "x");
  EXPECT_THAT(JsonCount(value, "m"),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("integer 'm' >= 0, got -1")));
  EXPECT_THAT(JsonCount(value, "big"),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("'big'")));
  EXPECT_THAT(JsonString(value, "n"),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("string 'n', got number")));
  EXPECT_THAT(JsonString(value, "none"),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("got nothing")));
}

}  // namespace
}  // namespace gshard
