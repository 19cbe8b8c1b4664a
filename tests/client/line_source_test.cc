#include "client/line_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/client/scratch_folder.h"
#include "tests/client/text_input.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

std::vector<std::string> ReadAll(const LineTranslator::Source& source) {
  std::vector<std::string> lines;
  while (true) {
    const absl::StatusOr<std::optional<SourceLine>> line = source.next();
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
  const TextInput in("a\r\n\nb");
  EXPECT_THAT(ReadAll(LinesOfFile(in.file(), {.language = "fr"})),
              ::testing::ElementsAre("fr|a", "fr|", "fr|b"));
}

TEST(LineSourceTest, AByteOrderMarkIsNoText) {
  const TextInput in(
      "\xEF\xBB\xBF"
      "de\ta\n\xEF\xBB\xBF\tb\n");
  EXPECT_THAT(ReadAll(LinesOfFile(in.file(), {.tab_separated = true})),
              ::testing::ElementsAre("de|a", "\xEF\xBB\xBF|b"));
}

TEST(LineSourceTest, TabsSeparateLanguageTextAndTheRest) {
  const TextInput in("de\tHallo\n\npt_BR\toi\thi\tmore\n");
  EXPECT_THAT(ReadAll(LinesOfFile(in.file(), {.tab_separated = true})),
              ::testing::ElementsAre("de|Hallo", "|", "pt_BR|oi"));
}

TEST(LineSourceTest, ALineWithoutATabIsNamed) {
  const TextInput in("de\tHallo\nWelt\n");
  const LineTranslator::Source source =
      LinesOfFile(in.file(), {.tab_separated = true});
  ASSERT_OK(source.next());
  ASSERT_OK_AND_ASSIGN(const std::optional<SourceLine> line, source.next());
  EXPECT_THAT(line->error,
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("line 2: expected language<TAB>")));
}

TEST(LineSourceTest, LongLinesAreNotHeld) {
  const TextInput in("a\n" + std::string(1 << 20, 'x') + "\nb\n");
  const LineTranslator::Source source = LinesOfFile(in.file(), {});
  ASSERT_OK(source.next());
  ASSERT_OK_AND_ASSIGN(const std::optional<SourceLine> line, source.next());
  EXPECT_THAT(line->error, StatusIs(absl::StatusCode::kInvalidArgument,
                                    "line 2: expected at most 65536 bytes"));
  EXPECT_EQ((*source.next())->text, "b");
}

TEST(LineSourceTest, APipeIsReadyForWholeLines) {
  PipeInput in, other;
  const LineTranslator::Source source = LinesOfFile(in.file(), {});
  EXPECT_FALSE(source.ready(-1));
  in.Write("a\nb\nc");
  EXPECT_TRUE(source.ready(-1));
  ASSERT_OK(source.next());
  EXPECT_TRUE(source.ready(-1));
  ASSERT_OK(source.next());
  EXPECT_FALSE(source.ready(-1));  // "c" has no line end yet
  other.Write("x");
  EXPECT_FALSE(source.ready(other.file()));
  in.End();
  EXPECT_TRUE(source.ready(other.file()));
  EXPECT_EQ((*source.next())->text, "c");
  EXPECT_FALSE((*source.next()).has_value());
}

TEST(LineSourceTest, SaysWhyAFileCannotBeRead) {
  const ScratchFolder folder;
  EXPECT_THAT(LinesOfPath(folder.path(), {}).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       folder.path() + ": is a directory"));
  EXPECT_THAT(
      LinesOfPath(folder.path() + "/none", {}).status(),
      StatusIs(absl::StatusCode::kNotFound, HasSubstr("/none': No such file")));
  EXPECT_THAT(LinesOfFile(1 << 20, {}).next().status().message(),
              HasSubstr("read 'the input': "));
  const std::string path = folder.Write("text", "a\n");
  ASSERT_OK_AND_ASSIGN(const LineTranslator::Source source,
                       LinesOfPath(path, {}));
  EXPECT_THAT(ReadAll(source), ::testing::ElementsAre("|a"));
}

}  // namespace
}  // namespace gshard
