#include "services/ops/top_tokens.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "services/base/check.h"
#include "services/base/parallel.h"
#include "services/ops/exp.h"
#include "services/ops/simd.h"

namespace gshard {
namespace {

constexpr int64_t kLanes = 16;

// Block size. The maximum of each block is kept, so that few logits are
// rescanned.
constexpr int64_t kBlock = 256;

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

// A lower bound that at least `count` logits reach, from the blocks' maxima.
float BoundOf(std::vector<float> maxima, size_t count) {
  if (count == 0 || maxima.size() < count) {
    return -std::numeric_limits<float>::infinity();
  }
  const auto last = maxima.begin() + static_cast<int64_t>(count) - 1;
  std::nth_element(maxima.begin(), last, maxima.end(), std::greater<>());
  return *last;
}

}  // namespace

std::vector<TokenScore> TopTokens(absl::Span<const float> logits,
                                  const TokensWanted& wanted) {
  const int64_t V = static_cast<int64_t>(logits.size());
  if (V == 0) return {};
  std::vector<float> maxima;  // one per block
  for (int64_t v = 0; v < V; v += kBlock) {
    maxima.push_back(Maximum(&logits[v], std::min(kBlock, V - v)));
  }
  const float maximum = *std::max_element(maxima.begin(), maxima.end());

  // A heap of the best tokens so far, with the worst of them at the front.
  const auto better = [](const TokenScore& a, const TokenScore& b) {
    return a.log_probability != b.log_probability
               ? a.log_probability > b.log_probability
               : a.token < b.token;
  };
  const absl::Span<const int32_t> never = wanted.never;
  std::vector<TokenScore> best;
  best.reserve(wanted.count + 1);
  const float bound = BoundOf(maxima, wanted.count + never.size());
  float worst = -std::numeric_limits<float>::infinity();
  for (int64_t v = 0; v < V; ++v) {
    const float most = maxima[v / kBlock];
    if (v % kBlock == 0 && (most < bound || !(most > worst))) {
      v += kBlock - 1;
      continue;
    }
    if (logits[v] < bound || !(logits[v] > worst)) continue;
    const int32_t token = static_cast<int32_t>(v);
    if (std::find(never.begin(), never.end(), token) != never.end()) continue;
    best.push_back({token, logits[v]});
    std::push_heap(best.begin(), best.end(), better);
    if (static_cast<int>(best.size()) > wanted.count) {
      std::pop_heap(best.begin(), best.end(), better);
      best.pop_back();
    }
    if (static_cast<int>(best.size()) == wanted.count) {
      worst = best.front().log_probability;
    }
  }
  std::sort_heap(best.begin(), best.end(), better);
  std::vector<float> also;
  for (const int32_t token : wanted.also) also.push_back(logits[token]);
  return ScoreTokens(std::move(best), wanted, also, maximum,
                     SumOfExp(logits.data(), V, maximum));
}

std::vector<std::vector<TokenScore>> TopTokensOfRows(
    const Tensor& logits, absl::Span<const TokensWanted> wanted) {
  const auto R = static_cast<int64_t>(wanted.size());
  CHECK(logits.dim(0) == R);
  const int64_t V = logits.dim(1);
  const absl::Span<const float> all = logits.span<float>();
  std::vector<std::vector<TokenScore>> rows(R);
  ParallelForChunks(R, ChunkSize(8 * V), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      rows[r] = TopTokens(all.subspan(r * V, V), wanted[r]);
    }
  });
  return rows;
}

std::vector<TokenScore> ScoreTokens(std::vector<TokenScore> best,
                                    const TokensWanted& wanted,
                                    absl::Span<const float> also, float maximum,
                                    float sum) {
  const float log_sum = std::log(sum);
  // A NaN makes the sum NaN.
  if (!std::isfinite(log_sum) || best.empty()) return {};
  for (size_t i = 0; i < wanted.also.size(); ++i) {
    const int32_t token = wanted.also[i];
    if (std::none_of(best.begin(), best.end(), [token](const TokenScore& one) {
          return one.token == token;
        })) {
      best.push_back({token, also[i]});
    }
  }
  for (TokenScore& score : best) {
    score.log_probability = score.log_probability - maximum - log_sum;
  }
  return best;
}

}  // namespace gshard
