// One suite for both implementations: the text in memory, which is the
// reference, and the streamed text, which is read on demand.

#include "services/data/tokenized_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>

#include "services/data/batch.h"
#include "services/data/batch_order.h"
#include "services/data/streamed_text.h"
#include "tests/reference/dataset.h"
#include "tests/services/data/sample_text.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using TextOrError = absl::StatusOr<std::unique_ptr<TokenizedText>>;

TextOrError InMemory(const std::vector<TextFile>& files,
                     const TextOptions& options, const std::string&) {
  const TextTokenizers tokenizers = SampleTokenizers();
  auto text =
      Dataset::Read(files, *tokenizers.source, *tokenizers.target, options);
  if (!text.ok()) return text.status();
  return std::make_unique<Dataset>(*std::move(text));
}

TextOrError Streamed(const std::vector<TextFile>& files,
                     const TextOptions& options, const std::string& scratch) {
  auto text = StreamedText::Open(files, SampleTokenizers(), options,
                                 {scratch + "/index"});
  if (!text.ok()) return text.status();
  return std::unique_ptr<TokenizedText>(*std::move(text));
}

struct Kind {
  const char* name;
  TextOrError (*open)(const std::vector<TextFile>& files,
                      const TextOptions& options, const std::string& scratch);
};

class TokenizedTextTest : public ::testing::TestWithParam<Kind> {
 protected:
  TextFile File(const std::string& name, const std::string& text,
                const std::string& language = "") {
    Spill(scratch_ / name, text);
    return {.path = scratch_ / name, .language = language, .weight = 1.0};
  }
  TextOrError Open(const std::vector<TextFile>& files,
                   const TextOptions& options = {}) {
    return GetParam().open(files, options, scratch_.path());
  }

  const ScratchDirectory scratch_;
};

TEST_P(TokenizedTextTest, HoldsTagPiecesAndEndOfSentence) {
  ASSERT_OK_AND_ASSIGN(
      const auto text,
      Open({File("a", "de\tHaus\thouse\nfr\tune maison\ta house"),
            File("b", "casa\thouse\nde\tein Haus\ta house\n", "es")}));
  EXPECT_EQ(text->size(), 4);
  EXPECT_THAT(text->languages(), ElementsAre("de", "fr", "es"));
  const std::vector<std::string> languages = {"de", "fr", "es", "de"};
  const std::vector<std::string> sources = {"Haus", "une maison", "casa",
                                            "ein Haus"};
  const std::vector<std::string> targets = {"house", "a house", "house",
                                            "a house"};
  const TextTokenizers tokenizers = SampleTokenizers();
  const Tokenizer& tokenizer = *tokenizers.source;
  ASSERT_OK_AND_ASSIGN(const auto pairs, text->Read({3, 0, 2, 1, 3}));
  const std::vector<int32_t> indices = {3, 0, 2, 1, 3};
  for (size_t k = 0; k < indices.size(); ++k) {
    const int32_t i = indices[k];
    ASSERT_OK_AND_ASSIGN(auto source, tokenizer.Encode(sources[i]));
    ASSERT_OK_AND_ASSIGN(auto target, tokenizer.Encode(targets[i]));
    ASSERT_OK_AND_ASSIGN(const int32_t tag,
                         tokenizer.LanguageTagId(languages[i]));
    source.insert(source.begin(), tag);
    source.push_back(tokenizer.eos_id());
    target.push_back(tokenizer.eos_id());
    EXPECT_EQ(pairs[k].source, source);
    EXPECT_EQ(pairs[k].target, target);
    EXPECT_EQ(text->lengths(i).longest,
              static_cast<int32_t>(std::max(source.size(), target.size())));
    EXPECT_EQ(text->lengths(i).target, static_cast<int32_t>(target.size()));
    EXPECT_EQ(text->languages()[text->language(i)], languages[i]);
    EXPECT_EQ(text->file(i), i / 2);
  }
}

TEST_P(TokenizedTextTest, CountsWhatItLeavesOutByReason) {
  ASSERT_OK_AND_ASSIGN(
      const auto text,
      Open({File("a",
                 absl::StrCat("de\tgut\tgood\n\nde\t\xFF\tx\nsv\tvad\twhat\n",
                              std::string("de\tz\0\tzero\n", 11),
                              "de\t\tempty\nde\tno\nd e\tx\ty\nde\t\u3000\tx\n",
                              "de\t", std::string(66000, 'x'), "\ty\n", "fr\t",
                              std::string(300, 'y'), "\ty\n"))}));
  TextReport expected;
  expected.pairs = 1;
  expected.bad.fill(1);
  expected.left_out_long = 1;
  EXPECT_EQ(text->report(), expected) << text->report().Summary();
  EXPECT_EQ(text->report().Summary(),
            "8 bad lines (1 of too many bytes, 1 not UTF-8, 1 with a zero "
            "byte, 1 with too few or too many columns, 1 without a language "
            "name, 1 with an empty side, 1 of an unknown language, 1 with a "
            "side of no pieces); 1 pair is too long");
}

TEST_P(TokenizedTextTest, TakesLinesUpToTheLimits) {
  // A line may have 65536 bytes, and a sentence max_length pieces.
  std::string line = "de\tja\t" + std::string((64 << 10) - 6 - 1, ' ') + "y";
  const std::string fits = line.substr(0, line.size() - 2) + "ya";
  ASSERT_EQ(fits.size(), size_t{64 << 10});
  ASSERT_OK_AND_ASSIGN(const auto text,
                       Open({File("a", fits + "\n " + fits + "\n")}));
  EXPECT_EQ(text->size(), 1);
  EXPECT_EQ(text->report().bad[0], 1);
  const int32_t length = text->lengths(0).longest;
  EXPECT_OK(Open({{.path = scratch_ / "a", .language = "", .weight = 1.0}},
                 {.max_length = length}));
  EXPECT_THAT(
      Open({{.path = scratch_ / "a", .language = "", .weight = 1.0}},
           {.max_length = length - 1}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no sentence")));
}

TEST_P(TokenizedTextTest, AFileOfNothingGoodIsAnError) {
  const TextFile good = File("good", "de\tja\tyes\n");
  EXPECT_THAT(Open({good, File("bad", "de\tja\n")}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr(scratch_ / "bad"),
                             HasSubstr("no sentence pairs"))));
  EXPECT_THAT(Open({File("long", "de\tja ja ja ja\tyes\n")}, {.max_length = 3}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr(scratch_ / "long"),
                             HasSubstr("no sentence pairs"))));
  EXPECT_THAT(Open({File("unknown", "sv\tja\tyes\n")}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr(scratch_ / "unknown")));
  EXPECT_THAT(
      Open({File("empty", "")}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("among 0 lines")));
  EXPECT_THAT(Open({{.path = "/no/such", .language = "", .weight = 1.0}}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/no/such")));
  EXPECT_THAT(
      Open({good}, {.max_length = 1}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("max_length")));
}

INSTANTIATE_TEST_SUITE_P(Both, TokenizedTextTest,
                         ::testing::Values(Kind{"InMemory", InMemory},
                                           Kind{"Streamed", Streamed}),
                         [](const auto& info) { return info.param.name; });

// Streamed text equals the text in memory in pairs, lengths, counts and
// batches, for random files with and without a final line feed.
TEST(TokenizedTextsTest, StreamedIsInMemory) {
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(seed);
    const ScratchDirectory scratch;
    std::vector<TextFile> files;
    for (int f = 0; f < 3; ++f) {
      std::string lines = SampleLines(60, 10 * seed + f);
      if (f == 1) lines += "de\tletzte Zeile\tlast line";
      Spill(scratch / absl::StrCat(f), lines);
      files.push_back({.path = scratch / absl::StrCat(f),
                       .language = f == 2 ? "es" : "",
                       .weight = f == 0 ? 2.5 : 1.0});
    }
    const TextOptions options{.max_length = 20};
    ASSERT_OK_AND_ASSIGN(const auto memory,
                         InMemory(files, options, scratch.path()));
    ASSERT_OK_AND_ASSIGN(const auto streamed,
                         Streamed(files, options, scratch.path()));
    EXPECT_EQ(streamed->report(), memory->report());
    EXPECT_EQ(streamed->languages(), memory->languages());
    ASSERT_EQ(streamed->size(), memory->size());
    for (int32_t i = 0; i < memory->size(); ++i) {
      EXPECT_EQ(streamed->lengths(i).longest, memory->lengths(i).longest);
      EXPECT_EQ(streamed->lengths(i).target, memory->lengths(i).target);
      EXPECT_EQ(streamed->language(i), memory->language(i));
      EXPECT_EQ(streamed->file(i), memory->file(i));
    }
    for (const double temperature : {1.0, 5.0}) {
      const BatchOrderOptions order_options{
          .seed = seed, .tokens = 100, .microbatches_per_step = 2, .pool = 64};
      ASSERT_OK_AND_ASSIGN(
          EpochSampler of_memory,
          EpochSampler::Create(*memory, files, temperature, seed));
      ASSERT_OK_AND_ASSIGN(
          EpochSampler of_streamed,
          EpochSampler::Create(*streamed, files, temperature, seed));
      ASSERT_OK_AND_ASSIGN(
          const BatchOrder a,
          BatchOrder::Create(*memory, order_options, std::move(of_memory)));
      ASSERT_OK_AND_ASSIGN(
          const BatchOrder b,
          BatchOrder::Create(*streamed, order_options, std::move(of_streamed)));
      for (int64_t step = 0; step < 30; ++step) {
        for (int32_t m = 0; m < 2; ++m) {
          const std::vector<int32_t> indices = a.Microbatch(step, m);
          ASSERT_EQ(b.Microbatch(step, m), indices);
          ASSERT_OK_AND_ASSIGN(const Batch x, ReadBatch(*memory, indices));
          ASSERT_OK_AND_ASSIGN(const Batch y, ReadBatch(*streamed, indices));
          EXPECT_TRUE(TensorEqual(x.source, y.source));
          EXPECT_TRUE(TensorEqual(x.target_input, y.target_input));
          EXPECT_TRUE(TensorEqual(x.target_labels, y.target_labels));
          EXPECT_EQ(x.source_tokens, y.source_tokens);
          EXPECT_EQ(x.target_tokens, y.target_tokens);
        }
      }
    }
  }
}

// Readers that share the microbatches read the same batches as a single reader,
// whatever their number and order.
TEST(TokenizedTextsTest, TheNumberOfReadersDoesNotMatter) {
  const ScratchDirectory scratch;
  Spill(scratch / "a", SampleLines(300, 1));
  Spill(scratch / "b", SampleLines(40, 2));
  const std::vector<TextFile> files = {
      {.path = scratch / "a", .language = "", .weight = 1.0},
      {.path = scratch / "b", .language = "", .weight = 3.0}};
  struct Reader {
    std::unique_ptr<StreamedText> text;
    std::unique_ptr<BatchOrder> order;
  };
  const auto make = [&] {
    Reader reader;
    reader.text =
        *StreamedText::Open(files, SampleTokenizers(), {}, {scratch / "index"});
    reader.order = std::make_unique<BatchOrder>(*BatchOrder::Create(
        *reader.text,
        {.seed = 9, .tokens = 120, .microbatches_per_step = 3, .pool = 100},
        *EpochSampler::Create(*reader.text, files, 5.0, 9)));
    return reader;
  };
  constexpr int64_t kSteps = 60;
  std::vector<Tensor> alone;
  const Reader one = make();
  // Of more than two epochs.
  ASSERT_GT(3 * kSteps, one.order->MicrobatchesInEpoch(0) +
                            one.order->MicrobatchesInEpoch(1));
  for (int64_t n = 0; n < 3 * kSteps; ++n) {
    ASSERT_OK_AND_ASSIGN(
        const Batch batch,
        ReadBatch(*one.text, one.order->Microbatch(n / 3, n % 3)));
    alone.push_back(batch.target_labels);
  }
  for (const int readers : {2, 3, 7}) {
    std::vector<Reader> many;
    for (int r = 0; r < readers; ++r) many.push_back(make());
    // Microbatches come out of order, each to a random reader.
    for (int64_t k = 0; k < 3 * kSteps; ++k) {
      const int64_t n = k * 77 % (3 * kSteps);
      const Reader& reader = many[RandomBelow(readers, k, readers)];
      ASSERT_OK_AND_ASSIGN(
          const Batch batch,
          ReadBatch(*reader.text, reader.order->Microbatch(n / 3, n % 3)));
      EXPECT_TRUE(TensorEqual(batch.target_labels, alone[n])) << n;
    }
  }
}

}  // namespace
}  // namespace gshard
