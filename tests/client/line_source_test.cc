#include "client/line_source.h"

#include <gtest/gtest.h>

#include <sstream>

#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

std::vector<std::string> ReadAll(const LineTranslator::Source& source) {
  std::vector<std::string> lines;
  while (true) {
    const absl::StatusOr<std::optional<SourceLine>> line = source();
    EXPECT_OK(line);
    if (!line.ok() || !line->has_value()) return lines;
    EXPECT_EQ((*line)->number, static_cast<int64_t>(lines.size()) + 1);
    lines.push_back((*line)->language + "|" + (*line)->text);
  }
}

TEST(LineSourceTest, TextsAreLines) {
  EXPECT_THAT(ReadAll(LinesOfTexts({"a", "", "b"}, {.language = "de"})),
              ::testing::ElementsAre("de|a", "de|", "de|b"));
}

TEST(LineSourceTest, LineEndsAreNotText) {
  std::istringstream in("a\r\n\nb");
  EXPECT_THAT(ReadAll(LinesOfStream(&in, {.language = "fr"})),
              ::testing::ElementsAre("fr|a", "fr|", "fr|b"));
}

TEST(LineSourceTest, TabsSeparateLanguageTextAndTheRest) {
  std::istringstream in("de\tHallo\n\npt_BR\toi\thi\tmore\n");
  EXPECT_THAT(ReadAll(LinesOfStream(&in, {.tab_separated = true})),
              ::testing::ElementsAre("de|Hallo", "|", "pt_BR|oi"));
}

TEST(LineSourceTest, ALineWithoutATabIsNamed) {
  std::istringstream in("de\tHallo\nWelt\n");
  const LineTranslator::Source source =
      LinesOfStream(&in, {.tab_separated = true});
  ASSERT_OK(source());
  EXPECT_THAT(source(), StatusIs(absl::StatusCode::kInvalidArgument,
                                 HasSubstr("line 2: expected language<TAB>")));
}

}  // namespace
}  // namespace gshard
