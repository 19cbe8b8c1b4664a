#include "services/decoding/top_tokens.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "services/ops/exp.h"
#include "services/ops/simd.h"

namespace gshard {
namespace {

constexpr int64_t kLanes = 16;

GSHARD_SIMD
float Maximum(const float* logits, int64_t size) {
  float lanes[kLanes];
  std::fill_n(lanes, kLanes, -std::numeric_limits<float>::infinity());
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    for (int64_t l = 0; l < kLanes; ++l) {
      lanes[l] = std::max(lanes[l], logits[i + l]);
    }
  }
  for (; i < size; ++i) lanes[0] = std::max(lanes[0], logits[i]);
  return *std::max_element(lanes, lanes + kLanes);
}

GSHARD_SIMD
float SumOfExp(const float* logits, int64_t size, float maximum) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    for (int64_t l = 0; l < kLanes; ++l) {
      lanes[l] += Exp(logits[i + l] - maximum);
    }
  }
  double sum = 0.0;
  for (; i < size; ++i) sum += Exp(logits[i] - maximum);
  for (const float lane : lanes) sum += lane;
  return static_cast<float>(sum);
}

// The first logit from `from` on that may be above the bound: those before are
// not.
GSHARD_SIMD
int64_t SkipBelow(const float* logits, int64_t from, int64_t size,
                  float bound) {
  for (; from + kLanes <= size; from += kLanes) {
    int32_t above = 0;
    for (int64_t l = 0; l < kLanes; ++l) above |= logits[from + l] > bound;
    if (above != 0) break;
  }
  return from;
}

}  // namespace

std::vector<TokenScore> TopTokens(absl::Span<const float> logits, int count,
                                  absl::Span<const int32_t> never,
                                  absl::Span<const int32_t> also) {
  const int64_t V = static_cast<int64_t>(logits.size());
  const float maximum = Maximum(logits.data(), V);
  const float log_sum = std::log(SumOfExp(logits.data(), V, maximum));
  // One that is no number spoils the sum.
  if (!std::isfinite(log_sum)) return {};

  // A heap whose front is the worst of the best so far.
  const auto better = [](const TokenScore& a, const TokenScore& b) {
    return a.log_probability != b.log_probability
               ? a.log_probability > b.log_probability
               : a.token < b.token;
  };
  std::vector<TokenScore> best;
  best.reserve(count + 1);
  float worst = -std::numeric_limits<float>::infinity();
  for (int64_t v = 0; v < V; ++v) {
    if (v % kLanes == 0) v = SkipBelow(logits.data(), v, V, worst);
    if (v == V || !(logits[v] > worst)) continue;
    const int32_t token = static_cast<int32_t>(v);
    if (std::find(never.begin(), never.end(), token) != never.end()) continue;
    best.push_back({token, logits[v]});
    std::push_heap(best.begin(), best.end(), better);
    if (static_cast<int>(best.size()) > count) {
      std::pop_heap(best.begin(), best.end(), better);
      best.pop_back();
    }
    if (static_cast<int>(best.size()) == count) {
      worst = best.front().log_probability;
    }
  }
  std::sort_heap(best.begin(), best.end(), better);
  if (best.empty()) return best;
  for (const int32_t token : also) {
    if (std::none_of(best.begin(), best.end(), [token](const TokenScore& one) {
          return one.token == token;
        })) {
      best.push_back({token, logits[token]});
    }
  }
  for (TokenScore& score : best) {
    score.log_probability = score.log_probability - maximum - log_sum;
  }
  return best;
}

}  // namespace gshard
