#include "router/edge/translate_answer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "services/base/retry_delay.h"
#include "tests/router/fake_model.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

// What a client of gRPC receives unless it sets another limit.
constexpr size_t kMostReceived = size_t{4} << 20;

// The answer to `sentences` sentences, each of two hypotheses with texts of
// this many ids, of two bytes and a space.
absl::StatusOr<v1::TranslateResponse> AnswerOf(size_t sentences, size_t ids) {
  PreparedTranslation prepared{std::make_shared<FakeModel>("tiny@1"),
                               std::vector<SourceSentence>(sentences)};
  for (SourceSentence& sentence : prepared.sentences) sentence.ids = {1, 11, 2};
  const DecodedHypothesis hypothesis{.ids = std::vector<int32_t>(ids, 10)};
  return MakeAnswer(
      AnswerContext(prepared),
      std::vector<Hypotheses>(sentences, Hypotheses(2, hypothesis)));
}

TEST(TranslateAnswerTest, IsNoLongerThanClientsTake) {
  ASSERT_OK_AND_ASSIGN(v1::TranslateResponse longest, AnswerOf(64, 10'900));
  v1::TranslateStreamResponse of_stream;
  of_stream.set_id(std::numeric_limits<uint64_t>::max());
  of_stream.mutable_status();
  *of_stream.mutable_response() = std::move(longest);
  EXPECT_GT(of_stream.ByteSizeLong(), kMostReceived - 10'000);
  EXPECT_LE(of_stream.ByteSizeLong(), kMostReceived);
  for (const auto& [sentences, ids] :
       {std::pair<size_t, size_t>(64, 10'930), {1, 700'000}}) {
    const auto answer = AnswerOf(sentences, ids);
    EXPECT_THAT(answer, StatusIs(absl::StatusCode::kResourceExhausted,
                                 HasSubstr("lower n_best")));
    EXPECT_FALSE(RetryDelay(answer.status()).has_value());
  }
}

}  // namespace
}  // namespace gshard
