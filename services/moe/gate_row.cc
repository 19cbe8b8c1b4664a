#include "services/moe/gate_row.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "services/ops/simd.h"

namespace gshard {
namespace {

// Vectors of the compiler's own: loops over local arrays are vectorised too,
// but keep their sums in memory. Where the CPU has narrower registers, one
// vector is several.
constexpr int kLanes = 16;
using Lanes [[gnu::vector_size(64), gnu::aligned(4), gnu::may_alias]] = float;
using Bits [[gnu::vector_size(64)]] = uint32_t;
constexpr int kBlock = 2 * kLanes;  // of the top-2 scan: two chains of max

constexpr float kInfinity = std::numeric_limits<float>::infinity();

[[gnu::always_inline]] inline const Lanes& Load(const float* from) {
  return *reinterpret_cast<const Lanes*>(from);
}
[[gnu::always_inline]] inline Lanes& Store(float* to) {
  return *reinterpret_cast<Lanes*>(to);
}

// out = e^x for x <= 0, as 2^n 2^f with |f| <= 1/2; the polynomial is that of
// Cephes' exp2f. NaN stays NaN.
[[gnu::always_inline]] inline void Exp(const Lanes& x, Lanes& out) {
  constexpr float kRound = 0x1.8p23f;  // adding it rounds to an integer
  Lanes y = x * 1.44269504088896341f;
  y = y < -126.0f ? Lanes{} - 126.0f : y;
  const Lanes shifted = y + kRound;
  const Lanes f = y - (shifted - kRound);
  Lanes p = f * 1.535336188319500e-4f + 1.339887440266574e-3f;
  p = p * f + 9.618437357674640e-3f;
  p = p * f + 5.550332471162809e-2f;
  p = p * f + 2.402264791363012e-1f;
  p = p * f + 6.931472028550421e-1f;
  p = p * f + 1.0f;
  // The low bits of `shifted` are n: add them to the exponent.
  out = reinterpret_cast<Lanes>(reinterpret_cast<Bits>(p) +
                                (reinterpret_cast<Bits>(shifted) << 23));
}

[[gnu::always_inline]] inline float Sum(const Lanes& v) {
  float sum = 0.0f;
  for (int i = 0; i < kLanes; ++i) sum += v[i];
  return sum;
}

// The lowest index other than `skip` whose logit is `value`, -1 if none. Lane i
// holds the logits at i, i + kBlock, ...; `lane_max` is the largest of each.
[[gnu::always_inline]] inline int64_t FindValue(const float* logits,
                                                const float* lane_max,
                                                float value, int64_t skip,
                                                int64_t num_experts) {
  int64_t found = num_experts;
  for (int64_t lane = 0; lane < kBlock; ++lane) {
    if (lane_max[lane] != value) continue;
    for (int64_t e = lane; e < found; e += kBlock) {
      if (logits[e] == value && e != skip) found = e;
    }
  }
  return found < num_experts ? found : -1;
}

}  // namespace

GSHARD_SIMD Top2 FindTop2(const float* logits, int64_t num_experts) {
  if (num_experts == 1) return {};
  Lanes m0 = Lanes{} - kInfinity, m1 = m0;
  int64_t e = 0;
  for (; e + kBlock <= num_experts; e += kBlock) {
    const Lanes x0 = Load(logits + e), x1 = Load(logits + e + kLanes);
    m0 = x0 > m0 ? x0 : m0;
    m1 = x1 > m1 ? x1 : m1;
  }
  alignas(64) float lane_max[kBlock];
  Store(lane_max) = m0;
  Store(lane_max + kLanes) = m1;
  for (int lane = 0; e < num_experts; ++e, ++lane) {
    lane_max[lane] = std::max(lane_max[lane], logits[e]);
  }

  const auto largest = [&] {
    Lanes a = Load(lane_max);
    const Lanes b = Load(lane_max + kLanes);
    a = b > a ? b : a;
    float max = a[0];
    for (int i = 1; i < kLanes; ++i) max = a[i] > max ? a[i] : max;
    return max;
  };
  Top2 top;
  top.first = static_cast<int32_t>(std::max<int64_t>(
      FindValue(logits, lane_max, largest(), -1, num_experts), 0));
  // The second is the largest once the first is taken out of its lane.
  const int64_t lane = top.first % kBlock;
  lane_max[lane] = -kInfinity;
  for (int64_t i = lane; i < num_experts; i += kBlock) {
    if (i != top.first) lane_max[lane] = std::max(lane_max[lane], logits[i]);
  }
  const int64_t second =
      FindValue(logits, lane_max, largest(), top.first, num_experts);
  top.second = second >= 0 ? static_cast<int32_t>(second) : !top.first;
  return top;
}

GSHARD_SIMD float ExpRow(const float* logits, float max, int64_t num_experts,
                         float* probability) {
  Lanes s0 = {}, s1 = {}, s2 = {}, s3 = {};
  Lanes p0, p1, p2, p3;
  int64_t e = 0;
  // Four chains of sums hide the latency of an add.
  for (; e + 4 * kLanes <= num_experts; e += 4 * kLanes) {
    // The next token's row comes from memory while this one is computed.
    for (int i = 0; i < 4; ++i) {
      __builtin_prefetch(logits + num_experts + e + i * kLanes);
    }
    Exp(Load(logits + e) - max, p0);
    Exp(Load(logits + e + kLanes) - max, p1);
    Exp(Load(logits + e + 2 * kLanes) - max, p2);
    Exp(Load(logits + e + 3 * kLanes) - max, p3);
    Store(probability + e) = p0;
    Store(probability + e + kLanes) = p1;
    Store(probability + e + 2 * kLanes) = p2;
    Store(probability + e + 3 * kLanes) = p3;
    s0 += p0;
    s1 += p1;
    s2 += p2;
    s3 += p3;
  }
  for (; e < num_experts; e += kLanes) {
    const int64_t rest = num_experts - e;
    if (rest >= kLanes) {
      Exp(Load(logits + e) - max, p0);
      Store(probability + e) = p0;
      s0 += p0;
      continue;
    }
    Lanes x = Lanes{} - kInfinity;
    std::memcpy(&x, logits + e, rest * sizeof(float));
    Exp(x - max, p0);
    std::memcpy(probability + e, &p0, rest * sizeof(float));
    for (int64_t i = rest; i < kLanes; ++i) p0[i] = 0.0f;
    s0 += p0;
  }
  return Sum((s0 + s1) + (s2 + s3));
}

GSHARD_SIMD void AddScaled(const float* row, float scale, int64_t num_experts,
                           float* sum) {
#pragma omp simd
  for (int64_t e = 0; e < num_experts; ++e) sum[e] += scale * row[e];
}

GSHARD_SIMD void SoftmaxGradientRow(const float* logits, float log_sum,
                                    const float* f, float shift,
                                    int64_t num_experts, float* d_logits) {
  Lanes s0 = {}, s1 = {};
  Lanes p0, p1;
  // log_sum is rounded, so it may lie just below the largest logit: Exp takes
  // that much above 0.
  int64_t e = 0;
  for (; e + 2 * kLanes <= num_experts; e += 2 * kLanes) {
    Exp(Load(logits + e) - log_sum, p0);
    Exp(Load(logits + e + kLanes) - log_sum, p1);
    Store(d_logits + e) = p0;
    Store(d_logits + e + kLanes) = p1;
    s0 += p0 * Load(f + e);
    s1 += p1 * Load(f + e + kLanes);
  }
  for (; e < num_experts; e += kLanes) {
    const int64_t rest = std::min<int64_t>(num_experts - e, kLanes);
    Lanes x = {}, g = {};
    std::memcpy(&x, logits + e, rest * sizeof(float));
    std::memcpy(&g, f + e, rest * sizeof(float));
    Exp(x - log_sum, p0);
    std::memcpy(d_logits + e, &p0, rest * sizeof(float));
    for (int64_t i = rest; i < kLanes; ++i) p0[i] = 0.0f;
    s0 += p0 * g;
  }
  const float offset = shift - Sum(s0 + s1);
#pragma omp simd
  for (int64_t i = 0; i < num_experts; ++i) d_logits[i] *= f[i] + offset;
}

}  // namespace gshard
