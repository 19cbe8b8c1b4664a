#include "tests/reference/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "services/tokenizer/trainer.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

class DatasetTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(corpus_, ReadCorpus("tests/data/names.tsv"));
    std::vector<std::string> sentences;
    for (const SentencePair& pair : corpus_.pairs) {
      sentences.push_back(pair.source);
      sentences.push_back(pair.target);
    }
    TokenizerOptions options;
    options.vocab_size = 300;
    options.languages = {"de", "fr", "es"};
    const std::string path = ::testing::TempDir() + "dataset_test.model";
    ASSERT_OK(TrainTokenizer(options, sentences, path));
    ASSERT_OK_AND_ASSIGN(tokenizer_, Tokenizer::Load(path));
  }

  Corpus corpus_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(DatasetTest, HoldsTagPiecesAndEndOfSentence) {
  ASSERT_OK_AND_ASSIGN(const Dataset dataset,
                       Dataset::Create(corpus_, *tokenizer_));
  ASSERT_EQ(dataset.size(), static_cast<int32_t>(corpus_.pairs.size()));
  int64_t source_pieces = 0, target_pieces = 0;
  for (int32_t i = 0; i < dataset.size(); ++i) {
    const SentencePair& pair = corpus_.pairs[i];
    ASSERT_OK_AND_ASSIGN(std::vector<int32_t> source,
                         tokenizer_->Encode(pair.source));
    ASSERT_OK_AND_ASSIGN(std::vector<int32_t> target,
                         tokenizer_->Encode(pair.target));
    ASSERT_OK_AND_ASSIGN(const int32_t tag,
                         tokenizer_->LanguageTagId(pair.language));
    source.insert(source.begin(), tag);
    source.push_back(tokenizer_->eos_id());
    target.push_back(tokenizer_->eos_id());
    EXPECT_EQ(dataset.source(i), absl::MakeConstSpan(source));
    EXPECT_EQ(dataset.target(i), absl::MakeConstSpan(target));
    EXPECT_EQ(dataset.lengths()[i],
              static_cast<int32_t>(std::max(source.size(), target.size())));
    EXPECT_EQ(dataset.lengths(i).target, static_cast<int32_t>(target.size()));
    source_pieces += static_cast<int64_t>(source.size());
    target_pieces += static_cast<int64_t>(target.size());
  }
  EXPECT_EQ(dataset.source_pieces(), source_pieces);
  EXPECT_EQ(dataset.target_pieces(), target_pieces);
}

TEST_F(DatasetTest, LeavesOutLongAndEmptyPairsAndCountsThem) {
  corpus_.pairs.push_back({"de", "\u3000", "no piece at all"});
  TextOptions options;
  options.max_length = 8;
  ASSERT_OK_AND_ASSIGN(const Dataset dataset,
                       Dataset::Create(corpus_, *tokenizer_, options));
  EXPECT_EQ(dataset.left_out_empty(), 1);
  EXPECT_GT(dataset.left_out_long(), 10);
  EXPECT_GT(dataset.size(), 10);
  EXPECT_EQ(dataset.size() + dataset.left_out_long() + 1,
            static_cast<int64_t>(corpus_.pairs.size()));
  EXPECT_EQ(
      *std::max_element(dataset.lengths().begin(), dataset.lengths().end()), 8);
}

TEST_F(DatasetTest, RefusesWhatItCannotEncode) {
  TextOptions options;
  options.max_length = 2;
  EXPECT_THAT(
      Dataset::Create(corpus_, *tokenizer_, options),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("max_length")));
  options.max_length = 3;
  Corpus too_long;
  too_long.pairs = {{"de", "eins zwei drei vier", "one"}};
  EXPECT_THAT(Dataset::Create(too_long, *tokenizer_, options),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("1 pair is too long")));
  corpus_.pairs[8].source = "\xFF";
  EXPECT_THAT(Dataset::Create(corpus_, *tokenizer_),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("pair 8: source: text: expected UTF-8")));
}

}  // namespace
}  // namespace gshard
