// The parts of the gate (services/moe/gating.h) that read all E logits of a
// token, and the gate's gradient. One warp per token.
//
// Letters: T tokens, G groups of S tokens, E experts.

#ifndef SERVICES_CUDA_KERNELS_GATE_ROWS_H_
#define SERVICES_CUDA_KERNELS_GATE_ROWS_H_

#include <cmath>
#include <cstdint>

#include "services/cuda/kernels/choice.h"
#include "services/cuda/kernels/rows.h"
#include "services/cuda/kernels/softmax_rows.h"
#include "services/ops/exp.h"

namespace gshard::cuda {

// The two largest logits of each token and, if `sum` is not null, the sum of
// exp(logit - largest) over all experts.
struct TopTwo {
  const float* logits;  // [T, E]
  int64_t experts;
  int32_t* expert;  // [T, 2], as FindTop2 (services/moe/gate_row.h) returns it
  float* logit;     // [T, 2]; if E is 1, only [t, 0] is written
  float* sum;       // [T], or null

  GSHARD_KERNEL_INLINE void operator()(int64_t token) const {
    const float* const x = logits + token * experts;
    Choice first, second;
    const auto add = [&](const Choice& choice) {
      if (choice.Before(first)) {
        second = first;
        first = choice;
      } else if (choice.Before(second)) {
        second = choice;
      }
    };
    for (int64_t e = Lane(); e < experts; e += kWarp) {
      add({x[e], static_cast<int32_t>(e)});
    }
    for (int apart = kWarp / 2; apart > 0; apart /= 2) {
      const Choice a = ShuffleChoice(first, Lane() ^ apart);
      const Choice b = ShuffleChoice(second, Lane() ^ apart);
      add(a);
      add(b);
    }
    const int32_t one = first.index == Choice::kNobody ? 0 : first.index;
    const int32_t two = experts < 2                       ? -1
                        : second.index == Choice::kNobody ? one == 0
                                                          : second.index;
    if (Lane() == 0) {
      expert[2 * token] = one;
      expert[2 * token + 1] = two;
      logit[2 * token] = x[one];
      if (two >= 0) logit[2 * token + 1] = x[two];
    }
    if (sum == nullptr) return;
    float of_lane = 0.0f;
    for (int64_t e = Lane(); e < experts; e += kWarp) {
      of_lane += Exp(x[e] - x[one]);
    }
    of_lane = WarpSum(of_lane);
    if (Lane() == 0) sum[token] = of_lane;
  }
};

// out [G, E]: the sums of probabilities over the valid tokens of each group,
// added in their order, computed from the outputs of TopTwo. Called for
// elements (group, expert).
struct ProbabilitySums {
  const float* logits;
  const int32_t* valid;  // [T]
  const float* logit;
  const float* sum;
  int64_t tokens;
  int64_t group_size;
  int64_t experts;
  float* out;

  GSHARD_KERNEL_INLINE void operator()(int64_t i) const {
    const int64_t first = i / experts * group_size, e = i % experts;
    const int64_t left = tokens - first;
    const int64_t end = first + (left < group_size ? left : group_size);
    float of_group = 0.0f;
    for (int64_t t = first; t < end; ++t) {
      if (valid[t] == 0) continue;
      of_group += Exp(logits[t * experts + e] - logit[2 * t]) * (1.0f / sum[t]);
    }
    out[i] = of_group;
  }
};

// GatingGradient (services/moe/gating.h).
struct GateGradient {
  const float* logits;     // [T, E]
  const int32_t* expert;   // [T, 2], -1 at padding
  const int32_t* slot;     // [T, 2]
  const int32_t* count;    // [G, E]
  const float* log_sum;    // [T]
  const float* d_weight;   // [T, 2]
  const float* d_balance;  // [1]
  const float* d_z;        // [1]
  const double* divisor;   // [G]: ValidTokens::BalanceDivisor
  int64_t group_size;
  int64_t experts;
  int64_t valid_tokens;
  bool losses;
  // Whether the option is Normalize::kNever or kAfterCapacity.
  bool never_normalized, normalized_after;
  float* d_logits;

  // The gradient, through the balance loss, of a token's probability of expert
  // e; `group` is the token's.
  GSHARD_KERNEL_INLINE float OfProbability(int64_t group, int64_t e) const {
    if (!losses) return 0.0f;
    const double scale = static_cast<double>(*d_balance) *
                         static_cast<double>(experts) / divisor[group];
    return static_cast<float>(scale * count[group * experts + e]);
  }

  GSHARD_KERNEL_INLINE void operator()(int64_t token) const {
    const int32_t* const chosen = expert + 2 * token;
    float* const out = d_logits + token * experts;
    if (chosen[0] < 0) {
      for (int64_t e = Lane(); e < experts; e += kWarp) out[e] = 0.0f;
      return;
    }
    const float* const x = logits + token * experts;
    const int64_t group = token / group_size;
    const bool softmax = losses || never_normalized;
    const float lse = softmax ? log_sum[token] : 0.0f;
    const float of_first = slot[2 * token] >= 0 ? d_weight[2 * token] : 0.0f;
    const float of_second =
        slot[2 * token + 1] >= 0 ? d_weight[2 * token + 1] : 0.0f;
    // Terms added to the gradients of the two chosen experts' logits.
    float first = 0.0f, second = 0.0f;
    float shift =
        losses ? 2.0f * *d_z * lse / static_cast<float>(valid_tokens) : 0.0f;
    if (never_normalized) {
      first = of_first * Exp(x[chosen[0]] - lse);
      if (chosen[1] >= 0) second = of_second * Exp(x[chosen[1]] - lse);
      shift -= first + second;
    } else if (chosen[1] >= 0 && WeightMoves(slot + 2 * token)) {
      const float ratio = Exp(x[chosen[1]] - x[chosen[0]]);
      const float product = ratio / ((1.0f + ratio) * (1.0f + ratio));
      first = (of_first - of_second) * product;
      second = -first;
    }
    float dot = 0.0f;
    if (softmax) {
      for (int64_t e = Lane(); e < experts; e += kWarp) {
        dot += Exp(x[e] - lse) * OfProbability(group, e);
      }
      dot = WarpSum(dot);
    }
    for (int64_t e = Lane(); e < experts; e += kWarp) {
      float d =
          softmax ? Exp(x[e] - lse) * (OfProbability(group, e) + (shift - dot))
                  : 0.0f;
      if (e == chosen[0]) d += first;
      if (e == chosen[1]) d += second;
      out[e] = d;
    }
  }

 private:
  // Whether a token's weights depend on its logits. Under kAfterCapacity, a
  // choice that is kept alone has weight 1 whatever the logits are.
  GSHARD_KERNEL_INLINE bool WeightMoves(const int32_t* of_token) const {
    return !normalized_after || (of_token[0] >= 0 && of_token[1] >= 0);
  }
};

}  // namespace gshard::cuda

#endif  // SERVICES_CUDA_KERNELS_GATE_ROWS_H_
