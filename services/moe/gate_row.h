// The loops of gating that touch all E logits of a token, vectorised.
// Everything else in gating takes O(1) per token.

#ifndef SERVICES_MOE_GATE_ROW_H_
#define SERVICES_MOE_GATE_ROW_H_

#include <cstdint>

namespace gshard {

struct Top2 {
  int32_t first = 0;    // index of the largest logit, the lowest on ties
  int32_t second = -1;  // likewise without `first`; -1 if E is 1
};

// REQUIRES: E >= 1. If a logit is NaN, the result is any two distinct indices
// in range.
Top2 FindTop2(const float* logits, int64_t num_experts);

// Sets probability[e] = exp(logits[e] - max), and returns the sum. For x =
// logits[e] - max <= 0 the relative error is at most 2^-22 + |x| 2^-23; below
// -87 exp is clamped to the smallest normal number, 1e-38.
float ExpRow(const float* logits, float max, int64_t num_experts,
             float* probability);

// sum[e] += scale * row[e].
void AddScaled(const float* row, float scale, int64_t num_experts, float* sum);

// d_logits[e] = p_e * (f[e] - sum_j p_j f[j] + shift), p = exp(logits -
// log_sum): the gradient of sum_j p_j f[j] + shift * log_sum.
void SoftmaxGradientRow(const float* logits, float log_sum, const float* f,
                        float shift, int64_t num_experts, float* d_logits);

}  // namespace gshard

#endif  // SERVICES_MOE_GATE_ROW_H_
