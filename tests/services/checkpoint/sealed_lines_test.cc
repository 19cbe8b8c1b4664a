#include "services/checkpoint/sealed_lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

const std::vector<std::string> kLines = {"{", "\"a\":1,", "\"b\":[],"};

std::string Line(size_t index, absl::string_view /*line*/) {
  return absl::StrCat("line ", index);
}

TEST(SealedLinesTest, TakesWhatItSealed) {
  EXPECT_OK(CheckSeal(SealLines(kLines), Line));
  EXPECT_OK(CheckSeal(SealLines({"{"}), Line));
}

TEST(SealedLinesTest, NamesTheFirstDamagedLine) {
  const std::string text = SealLines(kLines);
  const size_t lines = text.find("\"lines\""), digest = text.find("\"sha256\"");
  size_t line = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = text;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
      const std::string part = i >= digest  ? "'sha256'"
                               : i >= lines ? "'lines'"
                                            : absl::StrCat("line ", line, " ");
      ASSERT_THAT(CheckSeal(damaged, Line),
                  StatusIs(absl::StatusCode::kDataLoss, HasSubstr(part)))
          << "byte " << i << " bit " << bit;
    }
    if (text[i] == '\n') ++line;
  }
}

TEST(SealedLinesTest, NothingMayBeMissingOrAdded) {
  const std::string text = SealLines(kLines);
  for (size_t size = 0; size < text.size(); ++size) {
    ASSERT_THAT(CheckSeal(text.substr(0, size), Line),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("")));
  }
  EXPECT_THAT(CheckSeal(text + "\n", Line),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("'sha256'")));
}

}  // namespace
}  // namespace gshard
