#include "services/data/cleaning.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace gshard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<SentencePair> Clean(const std::vector<SentencePair>& pairs) {
  return CleanPairs(pairs, /*max_words=*/14);
}

TEST(CleaningTest, KeepsEnglishOfTwoToFourteenWords) {
  EXPECT_THAT(Clean({{"de", "Spiel", "game"}}), IsEmpty());
  EXPECT_EQ(Clean({{"de", "ein Spiel", "a game"}}).size(), 1u);
  const std::string fourteen = "a b c d e f g h i j k l m n";
  EXPECT_EQ(Clean({{"de", "eins zwei drei", fourteen}}).size(), 1u);
  EXPECT_THAT(Clean({{"de", "eins zwei drei", fourteen + " o"}}), IsEmpty());
}

TEST(CleaningTest, DropsUntranslatedText) {
  EXPECT_THAT(Clean({{"de", "The  Game", "the game"}}), IsEmpty());
}

TEST(CleaningTest, DropsSidesOfVeryDifferentLength) {
  // 14 English characters: the source may have 3 (0.21) to 42 (3.0).
  const std::string english = "a game for two";
  ASSERT_EQ(english.size(), 14u);
  EXPECT_THAT(Clean({{"ja", "\u4E8C\u4E8C", english}}), IsEmpty());
  EXPECT_EQ(Clean({{"ja", "\u4E8C\u4E8C\u4E8C", english}}).size(), 1u);
  EXPECT_EQ(Clean({{"de", std::string(42, 'x'), english}}).size(), 1u);
  EXPECT_THAT(Clean({{"de", std::string(43, 'x'), english}}), IsEmpty());
}

TEST(CleaningTest, KeepsTheFirstOfDuplicates) {
  EXPECT_THAT(
      Clean(
          {{"de", "Öl und Wasser", "oil and water"},
           {"de", "öl und wasser", "water and oil"},    // same source
           {"de", "Wasser, Öl", "Oil and water! (2)"},  // same English letters
           {"fr", "huile et eau", "oil and water"}}),   // another language
      ElementsAre(SentencePair{"de", "Öl und Wasser", "oil and water"},
                  SentencePair{"fr", "huile et eau", "oil and water"}));
}

TEST(CleaningTest, SqueezesWhiteSpace) {
  EXPECT_THAT(Clean({{"de", "  ein\t Spiel ", "a \n game"}}),
              ElementsAre(SentencePair{"de", "ein Spiel", "a game"}));
}

TEST(CleaningTest, DropsTextWithoutLettersOrUtf8) {
  EXPECT_THAT(Clean({{"de", "eins zwei", "1 2"},
                     {"de", "eins \xFF", "one two"},
                     {"de", " ", "one two"}}),
              IsEmpty());
}

TEST(CleaningTest, NearDuplicatesStayOnOneSide) {
  for (int i = 0; i < 1000; ++i) {
    const std::string word(1 + i % 26, static_cast<char>('a' + i / 40));
    EXPECT_EQ(SplitOf(absl::StrCat(word, " library 1.0")),
              SplitOf(absl::StrCat(word, " Library - 2")));
  }
}

TEST(CleaningTest, SplitsAboutTwoPercentTestAndOneDev) {
  std::map<Split, int> counts;
  std::string word = "aaaa";
  for (int i = 0; i < 20000; ++i) {
    for (int j = 0, n = i; j < 4; ++j, n /= 26) {
      word[j] = static_cast<char>('a' + n % 26);
    }
    ++counts[SplitOf(word)];
  }
  EXPECT_NEAR(counts[Split::kTest], 400, 80);
  EXPECT_NEAR(counts[Split::kDev], 200, 60);
}

}  // namespace
}  // namespace gshard
