#include "services/data/batch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "services/tokenizer/trainer.h"
#include "tests/reference/dataset.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

class BatchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(const Corpus corpus,
                         ReadCorpus("tests/data/names.tsv"));
    std::vector<std::string> sentences;
    for (const SentencePair& pair : corpus.pairs) {
      sentences.push_back(pair.source + " " + pair.target);
    }
    TokenizerOptions options;
    options.vocab_size = 300;
    options.languages = {"de", "fr", "es"};
    const std::string path = ::testing::TempDir() + "batch_test.model";
    ASSERT_OK(TrainTokenizer(options, sentences, path));
    ASSERT_OK_AND_ASSIGN(const auto tokenizer, Tokenizer::Load(path));
    ASSERT_OK_AND_ASSIGN(Dataset dataset, Dataset::Create(corpus, *tokenizer));
    dataset_ = std::make_unique<Dataset>(std::move(dataset));
  }

  std::unique_ptr<Dataset> dataset_;
};

// `rows` padded to the longest.
Tensor Padded(const std::vector<std::vector<int32_t>>& rows, int32_t padding) {
  size_t width = 0;
  for (const auto& row : rows) width = std::max(width, row.size());
  std::vector<int32_t> all;
  for (auto row : rows) {
    row.resize(width, padding);
    all.insert(all.end(), row.begin(), row.end());
  }
  return Tensor::Ints(
      {static_cast<int64_t>(rows.size()), static_cast<int64_t>(width)}, all);
}

TEST_F(BatchTest, PadsAndShifts) {
  const std::vector<int32_t> indices = {5, 0, 77, 400};
  ASSERT_OK_AND_ASSIGN(const Batch batch, ReadBatch(*dataset_, indices));
  std::vector<std::vector<int32_t>> source, input, labels;
  std::vector<int32_t> source_lengths, target_lengths;
  for (const int32_t i : indices) {
    const auto s = dataset_->source(i);
    const auto t = dataset_->target(i);
    source.emplace_back(s.begin(), s.end());
    labels.emplace_back(t.begin(), t.end());
    input.emplace_back(t.begin(), t.end() - 1);
    input.back().insert(input.back().begin(), 3);  // bos
    source_lengths.push_back(static_cast<int32_t>(s.size()));
    target_lengths.push_back(static_cast<int32_t>(t.size()));
    EXPECT_EQ(t.back(), 1);  // eos
  }
  EXPECT_TRUE(TensorEqual(batch.source, Padded(source, 0)));
  EXPECT_TRUE(TensorEqual(batch.target_input, Padded(input, 0)));
  EXPECT_TRUE(TensorEqual(batch.target_labels, Padded(labels, -1)));
  EXPECT_TRUE(
      TensorEqual(batch.source_lengths, Tensor::Ints({4}, source_lengths)));
  EXPECT_TRUE(
      TensorEqual(batch.target_lengths, Tensor::Ints({4}, target_lengths)));
}

TEST_F(BatchTest, CountsTokensWithoutPadding) {
  ASSERT_OK_AND_ASSIGN(const Batch batch, ReadBatch(*dataset_, {1, 2, 3}));
  int64_t source = 0, target = 0;
  for (int i : {1, 2, 3}) {
    source += static_cast<int64_t>(dataset_->source(i).size());
    target += static_cast<int64_t>(dataset_->target(i).size());
  }
  EXPECT_EQ(batch.source_tokens, source);
  EXPECT_EQ(batch.target_tokens, target);
  const auto labels = batch.target_labels.span<int32_t>();
  EXPECT_EQ(
      labels.size() - std::count(labels.begin(), labels.end(), Batch::kNoLabel),
      static_cast<size_t>(target));
}

TEST_F(BatchTest, OneSentenceHasNoPadding) {
  ASSERT_OK_AND_ASSIGN(const Batch batch, ReadBatch(*dataset_, {9}));
  EXPECT_EQ(batch.source.size(), batch.source_tokens);
  EXPECT_EQ(batch.target_labels.size(), batch.target_tokens);
}

}  // namespace
}  // namespace gshard
