// The most probable next tokens of one hypothesis.
//
// V is the target vocabulary.

#ifndef SERVICES_DECODING_TOP_TOKENS_H_
#define SERVICES_DECODING_TOP_TOKENS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace gshard {

struct TokenScore {
  int32_t token = 0;
  float log_probability = 0.0f;  // natural logarithm
};

// The `count` tokens of highest probability under softmax(logits), best first,
// ties by lower token. Fewer if the vocabulary is smaller. Tokens in `never`
// are omitted, but count in the softmax's sum. Tokens in `also` that are not
// among the best are appended, whatever their probability. A row's result
// depends only on its arguments.
//
// A row with NaN logits gives no tokens. REQUIRES: `also` is in range.
std::vector<TokenScore> TopTokens(absl::Span<const float> logits, int count,
                                  absl::Span<const int32_t> never,
                                  absl::Span<const int32_t> also = {});

}  // namespace gshard

#endif  // SERVICES_DECODING_TOP_TOKENS_H_
