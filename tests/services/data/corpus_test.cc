#include "services/data/corpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <string>

#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

// Reads a file with the text.
absl::StatusOr<Corpus> ParseCorpus(const std::string& text,
                                   const CorpusOptions& options = {}) {
  const std::string path = ::testing::TempDir() + "corpus_test_text.tsv";
  std::ofstream(path) << text;
  return ReadCorpus(path, options);
}

std::map<std::string, int64_t> CountByLanguage(const Corpus& corpus) {
  std::map<std::string, int64_t> counts;
  for (const SentencePair& pair : corpus.pairs) ++counts[pair.language];
  return counts;
}

TEST(CorpusTest, ReadsThreeColumns) {
  ASSERT_OK_AND_ASSIGN(const Corpus corpus,
                       ParseCorpus("de\tHallo Welt\tHello world\n"
                                   "\n"
                                   "pt_BR\tOi\tHi\r\n"
                                   "de\tja \t yes"));
  EXPECT_THAT(corpus.pairs,
              ElementsAre(SentencePair{"de", "Hallo Welt", "Hello world"},
                          SentencePair{"pt_BR", "Oi", "Hi"},
                          SentencePair{"de", "ja", "yes"}));
  EXPECT_EQ(corpus.bad_lines, 0);
  EXPECT_EQ(corpus.BadLineSummary(), "");
  EXPECT_THAT(CountByLanguage(corpus),
              ElementsAre(Pair("de", 2), Pair("pt_BR", 1)));
}

TEST(CorpusTest, ReadsTwoColumnsOfANamedLanguage) {
  CorpusOptions options;
  options.default_language = "de";
  ASSERT_OK_AND_ASSIGN(const Corpus corpus,
                       ParseCorpus("ja\tyes\nfr\toui\tyes\n", options));
  EXPECT_THAT(corpus.pairs, ElementsAre(SentencePair{"de", "ja", "yes"},
                                        SentencePair{"fr", "oui", "yes"}));
  EXPECT_THAT(ParseCorpus("ja\tyes\n"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("line 1: expected 3 columns, got 2")));
}

TEST(CorpusTest, CountsBadLinesAndTellsTheFirst) {
  CorpusOptions options;
  options.max_line_bytes = 40;
  options.max_reported = 7;
  const std::string text =
      "de\tgut\tgood\n"        // 1
      "only one column\n"      // 2
      "de\ta\tb\tc\n"          // 3
      "de\tbad \xFF\tbytes\n"  // 4
      "de\t\tempty\n"          // 5
      "de\tempty\t  \n"        // 6
      "d e\tno\tlanguage\n" +  // 7
      std::string("de\tz\0\tzero\n", 11) +
      std::string(1000, 'x') + "\n" +  // 9
      "de\tauch gut\talso good\n";     // 10
  ASSERT_OK_AND_ASSIGN(const Corpus corpus, ParseCorpus(text, options));
  EXPECT_EQ(corpus.pairs.size(), 2u);
  EXPECT_EQ(corpus.bad_lines, 8);
  EXPECT_EQ(corpus.BadLineSummary(),
            "8 bad lines: line 2: expected 3 columns, got 1; "
            "line 3: expected 3 columns, got 4; "
            "line 4: not UTF-8 at byte 7; line 5: the source is empty; "
            "line 6: the target is empty; "
            "line 7: the first column is no language name; "
            "line 8: holds a zero byte; ...");
}

TEST(CorpusTest, EndsWithAsManyPairsAsAreWanted) {
  const std::string text = "bad\nde\ta\tb\nbad\nde\tc\td\nbad\nde\te\tf";
  for (const int64_t wanted : {0, 1, 2, 3, 4}) {
    ASSERT_OK_AND_ASSIGN(const Corpus corpus,
                         ParseCorpus(text, {.max_pairs = wanted}));
    const int64_t got = wanted == 0 ? 3 : std::min<int64_t>(wanted, 3);
    EXPECT_EQ(corpus.pairs.size(), got);
    EXPECT_EQ(corpus.report.pairs, got);
    EXPECT_EQ(corpus.bad_lines, got) << "as the rest is not read";
  }
}

// Names of special pieces are no languages: tokenizers would have them twice.
TEST(CorpusTest, SpecialPiecesAreNoLanguages) {
  ASSERT_OK_AND_ASSIGN(
      const Corpus corpus,
      ParseCorpus("de\tja\tyes\nunk\ta\tb\ns\ta\tb\npad\ta\tb\n"));
  EXPECT_THAT(CountByLanguage(corpus), ElementsAre(Pair("de", 1)));
  EXPECT_EQ(corpus.bad_lines, 3);
}

TEST(CorpusTest, LimitIsOnWholeLines) {
  CorpusOptions options;
  options.max_line_bytes = 9;
  ASSERT_OK_AND_ASSIGN(const Corpus corpus,
                       ParseCorpus("de\tabc\txy\nde\tabc\txyz\n", options));
  EXPECT_EQ(corpus.pairs.size(), 1u);
  EXPECT_EQ(corpus.BadLineSummary(), "1 bad line: line 2: longer than 9 bytes");
}

TEST(CorpusTest, RefusesTextWithoutPairs) {
  EXPECT_THAT(ParseCorpus(""), StatusIs(absl::StatusCode::kInvalidArgument,
                                        HasSubstr("no sentence pairs")));
  EXPECT_THAT(
      ReadCorpus("no/such/file.tsv"),
      StatusIs(absl::StatusCode::kNotFound, HasSubstr("no/such/file.tsv")));
  EXPECT_THAT(
      ReadCorpus("tests"),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("tests")));
}

// A file is read in chunks, and a line may span two.
TEST(CorpusTest, ReadsLongFiles) {
  std::string text;
  std::vector<SentencePair> pairs;
  for (int i = 0; i < 30000; ++i) {
    pairs.push_back({"de", "satz " + std::to_string(i), "sentence"});
    text += "de\t" + pairs.back().source + "\tsentence\n";
  }
  ASSERT_OK_AND_ASSIGN(const Corpus corpus, ParseCorpus(text));
  EXPECT_TRUE(corpus.pairs == pairs);
}

TEST(CorpusTest, SamplesEvenlyAndInOrder) {
  const std::string a = ::testing::TempDir() + "corpus_test_a.tsv";
  const std::string b = ::testing::TempDir() + "corpus_test_b.tsv";
  std::ofstream(a) << "de\t0\t0\nbad\nde\t1\t1\n";
  {
    std::ofstream more(b);
    for (int i = 2; i < 20; ++i) more << i << "\t" << i << "\n";
  }
  const std::vector<TextFile> files = {
      {.path = a, .language = "", .weight = 1.0},
      {.path = b, .language = "fr", .weight = 1.0}};
  ASSERT_OK_AND_ASSIGN(const CorpusSample all,
                       SampleCorpus(files, {.max_pairs = 20, .seed = 1}));
  EXPECT_THAT(all.languages, ElementsAre("de", "fr"));
  EXPECT_EQ(all.bad_lines, 1);
  ASSERT_EQ(all.pairs.size(), 20u);
  EXPECT_EQ(all.pairs[19], (SentencePair{"fr", "19", "19"}));
  // 4000 times 5 of 20: each 1000 times, within 6 standard deviations.
  std::vector<int> counts(20);
  for (uint64_t seed = 0; seed < 4000; ++seed) {
    ASSERT_OK_AND_ASSIGN(const CorpusSample some,
                         SampleCorpus(files, {.max_pairs = 5, .seed = seed}));
    ASSERT_EQ(some.pairs.size(), 5u);
    EXPECT_THAT(some.languages, ElementsAre("de", "fr"));
    int last = -1;
    for (const SentencePair& pair : some.pairs) {
      const int number = std::stoi(pair.source);
      EXPECT_GT(number, last);
      last = number;
      ++counts[number];
    }
  }
  for (const int count : counts) EXPECT_NEAR(count, 1000, 6 * 27.4);
}

// A text with the number of each row in its first column.
TEST(CorpusTest, ASampleHasABoundedNumberOfLanguages) {
  const std::string path = ::testing::TempDir() + "corpus_test_rows.tsv";
  const auto write = [&](int rows) {
    std::ofstream file(path);
    for (int i = 1; i <= rows; ++i) file << "row" << i << "\ta\tb\n";
  };
  const std::vector<TextFile> files = {
      {.path = path, .language = "", .weight = 1.0}};
  write(static_cast<int>(kMaxLanguages));
  ASSERT_OK_AND_ASSIGN(const CorpusSample sample,
                       SampleCorpus(files, {.max_pairs = 1}));
  EXPECT_EQ(sample.languages.size(), kMaxLanguages);
  write(100'000);
  EXPECT_THAT(
      SampleCorpus(files, {.max_pairs = 1}),
      StatusIs(absl::StatusCode::kInvalidArgument,
               path + ": line 3501: expected at most 3500 languages in the "
                      "first column of all lines, got one more, \"row3501\""));
}

TEST(CorpusTest, ASampleLacksWhatIsTooLong) {
  const std::string path = ::testing::TempDir() + "corpus_test_long.tsv";
  std::ofstream(path) << "de\tabc\tabcd\nde\tabcd\tabc\n";
  ASSERT_OK_AND_ASSIGN(
      const CorpusSample sample,
      SampleCorpus({{.path = path, .language = "", .weight = 1.0}},
                   {.max_pairs = 2, .max_side_bytes = 3}));
  EXPECT_THAT(sample.pairs, ElementsAre(SentencePair{"de", "abc", ""},
                                        SentencePair{"de", "", "abc"}));
}

TEST(CorpusTest, WritesWhatItReads) {
  const std::string path = ::testing::TempDir() + "corpus_test.tsv";
  const std::vector<SentencePair> pairs = {{"de", "ja", "yes"},
                                           {"fr", "non", "no"}};
  ASSERT_OK(WriteCorpus(path, pairs));
  ASSERT_OK_AND_ASSIGN(const Corpus corpus, ReadCorpus(path));
  EXPECT_EQ(corpus.pairs, pairs);
}

TEST(CorpusTest, WritesAllOrNothing) {
  const std::string path = ::testing::TempDir() + "corpus_test_bad.tsv";
  EXPECT_THAT(WriteCorpus(path, {{"de", "a", "b"}, {"de", "a\tb", "c"}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(path)));
  EXPECT_FALSE(std::ifstream(path).is_open());
  EXPECT_THAT(
      WriteCorpus("/no/such/folder/x.tsv", {}),
      StatusIs(absl::StatusCode::kNotFound, HasSubstr("/no/such/folder")));
}

TEST(CorpusTest, FixtureIsClean) {
  ASSERT_OK_AND_ASSIGN(const Corpus corpus, ReadCorpus("tests/data/names.tsv"));
  EXPECT_EQ(corpus.bad_lines, 0);
  EXPECT_THAT(CountByLanguage(corpus),
              ElementsAre(Pair("de", 138), Pair("es", 173), Pair("fr", 199)));
}

}  // namespace
}  // namespace gshard
