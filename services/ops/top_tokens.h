// The most probable next tokens of one hypothesis.
//
// V is the target vocabulary.

#ifndef SERVICES_OPS_TOP_TOKENS_H_
#define SERVICES_OPS_TOP_TOKENS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "services/tensor/tensor.h"

namespace gshard {

struct TokenScore {
  int32_t token = 0;
  float log_probability = 0.0f;  // natural logarithm
};

// Request for one row; see TopTokens(). Spans are not owned.
struct TokensWanted {
  int count = 0;
  absl::Span<const int32_t> never = {};
  absl::Span<const int32_t> also = {};  // in [0, V)
};

// The `count` tokens of highest probability under softmax(logits), best first,
// ties by lower token. Fewer if the vocabulary is smaller. Tokens in `never`
// are omitted, but count in the softmax's sum. Tokens in `also` that are not
// among the best are appended, whatever their probability. A row's result
// depends only on its arguments.
//
// A row with NaN logits gives no tokens.
std::vector<TokenScore> TopTokens(absl::Span<const float> logits,
                                  const TokensWanted& wanted);

// The same for each row of logits [R, V], f32 on the host; wanted.size() is R.
std::vector<std::vector<TokenScore>> TopTokensOfRows(
    const Tensor& logits, absl::Span<const TokensWanted> wanted);

// The last step of TopTokens, for callers that compute the rest on a device.
// `best` has logits in place of log probabilities, best first; `also` has the
// logits of `wanted.also`; `maximum` and `sum` are the row's maximum and its
// sum of exp(logit - maximum).
std::vector<TokenScore> ScoreTokens(std::vector<TokenScore> best,
                                    const TokensWanted& wanted,
                                    absl::Span<const float> also, float maximum,
                                    float sum);

}  // namespace gshard

#endif  // SERVICES_OPS_TOP_TOKENS_H_
