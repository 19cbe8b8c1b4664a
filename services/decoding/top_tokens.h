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

// The `count` tokens of highest probability under softmax(logits), best first;
// equal ones by lower token. Fewer if the vocabulary is smaller. Tokens of
// `never` are left out, but count in the softmax's sum. Those of `also` that
// are not among the best follow them, whatever their probability. A row's
// result does not depend on anything but its arguments.
//
// A row with logits that are not numbers gives no tokens. REQUIRES: `also` is in range.
std::vector<TokenScore> TopTokens(absl::Span<const float> logits, int count,
                                  absl::Span<const int32_t> never,
                                  absl::Span<const int32_t> also = {});

}  // namespace gshard

#endif  // SERVICES_DECODING_TOP_TOKENS_H_
