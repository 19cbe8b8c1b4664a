#include "router/models/terminology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "services/base/random.h"
#include "services/decoding/phrase_constraints.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

v1::TranslateOptions Terms(const std::vector<std::string>& sources) {
  v1::TranslateOptions options;
  for (const std::string& source : sources) {
    v1::Term& term = *options.add_terms();
    term.set_source(source);
    term.set_target("t");
  }
  return options;
}

TEST(TerminologyTest, TermsAreWholeWords) {
  constexpr size_t kNowhere = std::string::npos;
  EXPECT_EQ(FindWords("das Bild hier", "Bild"), 4u);
  EXPECT_EQ(FindWords("Bild", "Bild"), 0u);
  EXPECT_EQ(FindWords("(Bild)", "Bild"), 1u);
  EXPECT_EQ(FindWords("Bilder, Bild", "Bild"), 8u);
  EXPECT_EQ(FindWords("das Bild hier", "Bild hier"), 4u);
  EXPECT_EQ(FindWords("Bilder", "Bild"), kNowhere);
  EXPECT_EQ(FindWords("Abbild", "bild"), kNowhere);
  EXPECT_EQ(FindWords("das bild", "Bild"), kNowhere);
  EXPECT_EQ(FindWords("B\xC3\xA4r", "B"), kNowhere);
  EXPECT_EQ(FindWords("C++ lernen", "C++"), 0u);
  EXPECT_EQ(FindWords("", "x"), kNowhere);
}

TEST(TerminologyTest, WordsEndAtPunctuationOfAnyScript) {
  const TermFinder finder(Terms({"GIMP"}));
  for (const std::string text :
       {"\u201EGIMP\u201C", "\u201CGIMP\u201D", "\u00ABGIMP\u00BB",
        "GIMP\u2026", "GIMP\u2014der", "GIMP\u2019s", "\u4F7F\u7528 GIMP\u3002",
        "mit\u00A0GIMP\u202F!", "\u300CGIMP\uFF0C", "GIMP\u2122",
        "\U0001F389GIMP"}) {
    EXPECT_EQ(FindWords(text, "GIMP"), text.find("GIMP")) << text;
    EXPECT_THAT(finder.Find(text), ElementsAre(true)) << text;
  }
  for (const std::string text : {"GIMP\u00E4", "\u00DFGIMP", "\u4F7FGIMP",
                                 "GIMP\u0301", "GIMP\u00ADs"}) {
    EXPECT_EQ(FindWords(text, "GIMP"), std::string::npos) << text;
    EXPECT_THAT(finder.Find(text), ElementsAre(false)) << text;
  }
  // Also at the ends of terms.
  const std::string quoted = "\u201EBild\u201C";
  EXPECT_EQ(FindWords("das\u201EBild\u201Cgut", quoted), 3u);
  EXPECT_THAT(TermFinder(Terms({quoted})).Find("das\u201EBild\u201Cgut"),
              ElementsAre(true));
}

TEST(TerminologyTest, AllTermsAreFoundAtOnceAsOneByOne) {
  uint64_t drawn = 0;
  const auto draw = [&drawn](size_t longest) {
    const uint64_t size = 1 + RandomBelow(1, ++drawn, longest);
    std::string text;
    for (uint64_t i = 0; i < size; ++i) {
      constexpr absl::string_view kCharacters[] = {"a", " ", ".", "\xC3\xA4",
                                                   "\xE2\x80\x9C"};
      text += std::string(kCharacters[RandomBelow(1, ++drawn, 5)]);
    }
    return text;
  };
  int64_t hits = 0;
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::string> terms;
    for (int i = 0; i < 12; ++i) terms.push_back(draw(5));
    const std::string text = draw(20);
    const std::vector<bool> found = TermFinder(Terms(terms)).Find(text);
    for (size_t i = 0; i < terms.size(); ++i) {
      EXPECT_EQ(found[i], FindWords(text, terms[i]) != std::string::npos)
          << "'" << text << "' '" << terms[i] << "'";
      hits += found[i] ? 1 : 0;
    }
  }
  EXPECT_GT(hits, 1000);
}

// Common prefixes of terms are not compared repeatedly: the automaton takes a
// step or two for each byte of the text and its marks.
TEST(TerminologyTest, HostileTermsAreFoundInLinearTime) {
  std::vector<std::string> spaces, nested;
  for (int i = 0; i < kMaxTerms; ++i) {
    spaces.push_back(std::string(254, ' ') + static_cast<char>('0' + i));
    nested.push_back("a.");
    for (int k = 0; k < i; ++k) nested.back() += "xa.";
  }
  std::string dots;
  while (dots.size() < 16384) dots += "xa.";
  for (const auto& [terms, text] :
       {std::make_pair(spaces, std::string(16383, ' ') + "a"),
        std::make_pair(nested, dots)}) {
    int64_t steps = 0;
    TermFinder(Terms(terms)).Find(text, &steps);
    EXPECT_GE(steps, static_cast<int64_t>(text.size()));
    EXPECT_LE(steps, 4 * static_cast<int64_t>(text.size()) + 2);
  }
}

std::vector<std::string> Texts(const v1::Sentence& sentence,
                               const v1::TranslateOptions& options) {
  const auto phrases = TargetPhrases(sentence, options, TermFinder(options));
  EXPECT_OK(phrases);
  std::vector<std::string> texts;
  for (const TargetPhrase& phrase : *phrases) texts.push_back(phrase.text);
  return texts;
}

TEST(TerminologyTest, PhrasesAreWhatIsKeptAndTheTermsThatApply) {
  v1::Sentence sentence;
  sentence.set_text("Das Bild von GIMP");
  v1::TranslateOptions options;
  const auto term = [&](const std::string& source, const std::string& target) {
    options.add_terms()->set_source(source);
    options.mutable_terms(options.terms_size() - 1)->set_target(target);
  };
  EXPECT_THAT(Texts(sentence, options), IsEmpty());
  term("Ton", "sound");
  term("Bild", "image");
  term("GIMP", "GIMP");
  v1::TextSpan* const span = sentence.add_keep();
  span->set_begin(13);
  span->set_end(17);
  EXPECT_THAT(Texts(sentence, options), ElementsAre("GIMP", "image"));
  // White space around it makes no other phrase.
  span->set_begin(12);
  options.mutable_terms(1)->set_target("image ");
  EXPECT_THAT(Texts(sentence, options), ElementsAre("GIMP", "image"));
}

TEST(TerminologyTest, SpansAreOfTheText) {
  v1::Sentence sentence;
  sentence.set_text("\xC3\xA4 b");
  v1::TextSpan* const span = sentence.add_keep();
  for (const auto& [begin, end] : std::vector<std::pair<int, int>>{
           {-1, 2}, {0, 0}, {2, 1}, {0, 5}, {4, 5}, {1, 2}, {0, 1}, {2, 3}}) {
    SCOPED_TRACE(::testing::Message() << begin << ", " << end);
    span->set_begin(begin);
    span->set_end(end);
    EXPECT_THAT(TargetPhrases(sentence, {}, TermFinder({})),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("keep[0]: expected")));
  }
  span->set_begin(0);
  span->set_end(2);
  EXPECT_THAT(Texts(sentence, {}), ElementsAre("\xC3\xA4"));
}

TEST(TerminologyTest, PhrasesAreNoMoreThanCanBeHad) {
  v1::Sentence sentence;
  sentence.set_text(std::string(200, 'a'));
  const auto keep = [&sentence](int end) { sentence.add_keep()->set_end(end); };
  for (int i = 1; i <= kMaxPhrases; ++i) keep(i);
  keep(1);  // a duplicate
  EXPECT_EQ(Texts(sentence, {}).size(), kMaxPhrases);
  keep(100);
  EXPECT_THAT(TargetPhrases(sentence, {}, TermFinder({})),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("keep[33]: expected at most 32")));
  sentence.mutable_keep()->RemoveLast();
  sentence.set_text(sentence.text() + " b");
  v1::TranslateOptions options;
  options.add_terms()->set_source("b");
  options.mutable_terms(0)->set_target("c");
  EXPECT_THAT(TargetPhrases(sentence, options, TermFinder(options)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("terms[0].target: expected at most 32")));
}

TEST(TerminologyTest, KeptPartsThatAreAlikeAreCounted) {
  v1::Sentence sentence;
  sentence.set_text("ab");
  for (int i = 0; i < kMaxKept; ++i) sentence.add_keep()->set_end(1);
  EXPECT_THAT(Texts(sentence, {}), ElementsAre("a"));
  sentence.add_keep()->set_end(1);
  EXPECT_THAT(TargetPhrases(sentence, {}, TermFinder({})),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("keep: expected at most 16384 parts")));
}

TEST(TerminologyTest, TermsAreChecked) {
  v1::TranslateOptions options;
  v1::Term& term = *options.add_terms();
  term.set_source("a");
  EXPECT_THAT(
      CheckTerms(options),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("options.terms[0].target: expected 1 to 256")));
  term.set_target(std::string(257, 'x'));
  EXPECT_FALSE(CheckTerms(options).ok());
  term.set_target(std::string(256, 'x'));
  EXPECT_OK(CheckTerms(options));
  term.set_source(" ");
  EXPECT_FALSE(CheckTerms(options).ok());
  term.set_source("a");
  for (int i = 1; i < kMaxTerms; ++i) *options.add_terms() = term;
  EXPECT_OK(CheckTerms(options));
  *options.add_terms() = term;
  EXPECT_THAT(
      CheckTerms(options),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("options.terms: expected at most 64, got 65")));
}

}  // namespace
}  // namespace gshard
