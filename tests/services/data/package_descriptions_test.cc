#include "services/data/package_descriptions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace gshard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr char kEnglish[] =
    "Package: chess\n"
    "Description-md5: aaaa\n"
    "Description-en: game of chess\n"
    " Play against\n"
    " the computer.\n"
    " .\n"
    "  * a list\n"
    "  * of things\n"
    " .\n"
    " Or a friend.\n"
    "\n"
    "Package: chess\n"
    "Description-md5: bbbb\n"
    "Description-en: newer game of chess\n"
    "\n"
    "Package: go\n"
    "Description-md5: cccc\n"
    "Description-en: game of go\n"
    " Old game.\n";

constexpr char kGerman[] =
    "Package: chess\n"
    "Description-md5: aaaa\n"
    "Description-de: Schachspiel\n"
    " Gegen den Computer\n"
    " spielen.\n"
    " .\n"
    "  * eine Liste\n"
    " .\n"
    " Oder einen Freund.\n"
    "\n"
    "Package: go\n"
    "Description-md5: cccc\n"
    "Description-de: Go-Spiel\n"
    " Altes Spiel.\n"
    " .\n"
    " Sehr alt.\n";

TEST(PackageDescriptionsTest, ReadsStanzas) {
  const std::vector<Description> read = ParseTranslations(kEnglish, "en");
  ASSERT_EQ(read.size(), 3u);
  EXPECT_EQ(read[0].package, "chess");
  EXPECT_EQ(read[0].md5, "aaaa");
  EXPECT_EQ(read[0].title, "game of chess");
  EXPECT_THAT(read[0].paragraphs,
              ElementsAre("Play against the computer.", "", "Or a friend."));
  EXPECT_EQ(read[1].md5, "bbbb");
  EXPECT_THAT(read[1].paragraphs, IsEmpty());
  EXPECT_THAT(read[2].paragraphs, ElementsAre("Old game."));
}

TEST(PackageDescriptionsTest, SkipsStanzasThatLackAField) {
  EXPECT_THAT(ParseTranslations("", "de"), IsEmpty());
  EXPECT_THAT(ParseTranslations(kEnglish, "de"), IsEmpty());
  EXPECT_THAT(ParseTranslations(" lost\n\n\nPackage: x\n", "de"), IsEmpty());
  EXPECT_THAT(ParseTranslations("Package: x\nDescription-de: y\n", "de"),
              IsEmpty());
  EXPECT_THAT(
      ParseTranslations(
          "Package: x\nDescription-md5: a\nDescription-de: \xFF\n", "de"),
      IsEmpty());
}

TEST(PackageDescriptionsTest, MatchesPackageAndChecksum) {
  const auto english = ParseTranslations(kEnglish, "en");
  const auto german = ParseTranslations(kGerman, "de");
  EXPECT_THAT(MatchDescriptions(english, german, "de", false),
              ElementsAre(SentencePair{"de", "Schachspiel", "game of chess"},
                          SentencePair{"de", "Go-Spiel", "game of go"}));
}

TEST(PackageDescriptionsTest, PairsParagraphsOnlyIfTheirNumbersAgree) {
  const auto english = ParseTranslations(kEnglish, "en");
  const auto german = ParseTranslations(kGerman, "de");
  EXPECT_THAT(
      MatchDescriptions(english, german, "de", true),
      ElementsAre(SentencePair{"de", "Schachspiel", "game of chess"},
                  SentencePair{"de", "Gegen den Computer spielen.",
                               "Play against the computer."},
                  SentencePair{"de", "Oder einen Freund.", "Or a friend."},
                  SentencePair{"de", "Go-Spiel", "game of go"}));
}

}  // namespace
}  // namespace gshard
