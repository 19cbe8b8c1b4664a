#include "services/moe/gate_row.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "services/ops/simd.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(GSHARD_SANITIZED)
// GCC 12 warns about the undefined operands inside this header.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#define GSHARD_AVX512
#endif

namespace gshard {
namespace {

// GCC vector types: loops over local arrays are vectorised too, but keep their
// sums in memory. On CPUs with narrower registers a vector takes several.
constexpr int kLanes = 16;
using Lanes [[gnu::vector_size(64), gnu::aligned(4), gnu::may_alias]] = float;
using Bits [[gnu::vector_size(64)]] = uint32_t;
constexpr int kBlock = 2 * kLanes;  // top-2 scan: two chains of max

constexpr float kInfinity = std::numeric_limits<float>::infinity();

[[gnu::always_inline]] inline const Lanes& Load(const float* from) {
  return *reinterpret_cast<const Lanes*>(from);
}
[[gnu::always_inline]] inline Lanes& Store(float* to) {
  return *reinterpret_cast<Lanes*>(to);
}

// out = e^x for x <= 0, as 2^n 2^f with |f| <= 1/2; the polynomial is the one
// of Cephes' exp2f. NaN stays NaN.
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

GSHARD_SIMD Top2 FindTop2Anywhere(const float* logits, int64_t num_experts) {
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
  // The second best is the maximum once the first is removed from its lane.
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

#ifdef GSHARD_AVX512
// The same with compares into bit masks, which GCC's vector types cannot
// express: the position of the largest logit is unpredictable, so a branch per
// lane costs more than the vectors save.
#define GSHARD_TARGET [[gnu::target("avx512f")]]

GSHARD_TARGET inline __m512 LoadUpTo(const float* from, int64_t count) {
  return _mm512_mask_loadu_ps(
      _mm512_set1_ps(-kInfinity),
      static_cast<__mmask16>(count >= kLanes ? 0xffff : (1 << count) - 1),
      from);
}

// The lane maxima of `count` logits.
GSHARD_TARGET inline __m512 MaxOf(const float* logits, int64_t count) {
  __m512 m0 = _mm512_set1_ps(-kInfinity), m1 = m0, m2 = m0, m3 = m0;
  int64_t e = 0;
  for (; e + 4 * kLanes <= count; e += 4 * kLanes) {
    m0 = _mm512_max_ps(_mm512_loadu_ps(logits + e), m0);
    m1 = _mm512_max_ps(_mm512_loadu_ps(logits + e + kLanes), m1);
    m2 = _mm512_max_ps(_mm512_loadu_ps(logits + e + 2 * kLanes), m2);
    m3 = _mm512_max_ps(_mm512_loadu_ps(logits + e + 3 * kLanes), m3);
  }
  for (; e < count; e += kLanes) {
    m0 = _mm512_max_ps(LoadUpTo(logits + e, count - e), m0);
  }
  return _mm512_max_ps(_mm512_max_ps(m0, m1), _mm512_max_ps(m2, m3));
}

GSHARD_TARGET inline int64_t FindValueAvx512(const float* logits, float value,
                                             int64_t skip,
                                             int64_t num_experts) {
  const __m512 values = _mm512_set1_ps(value);
  const auto hit = [](uint32_t bits, int64_t begin, int64_t skip) {
    if (skip >= begin && skip < begin + kLanes) bits &= ~(1u << (skip - begin));
    return bits != 0 ? begin + std::countr_zero(bits) : -1;
  };
  int64_t e = 0;
  for (; e + 4 * kLanes <= num_experts; e += 4 * kLanes) {
    uint32_t bits[4];
    for (int i = 0; i < 4; ++i) {
      bits[i] = _mm512_cmp_ps_mask(_mm512_loadu_ps(logits + e + i * kLanes),
                                   values, _CMP_EQ_OQ);
    }
    if ((bits[0] | bits[1] | bits[2] | bits[3]) == 0) continue;
    for (int i = 0; i < 4; ++i) {
      const int64_t found = hit(bits[i], e + i * kLanes, skip);
      if (found >= 0) return found;
    }
  }
  for (; e < num_experts; e += kLanes) {
    const int64_t found =
        hit(_mm512_cmp_ps_mask(LoadUpTo(logits + e, num_experts - e), values,
                               _CMP_EQ_OQ),
            e, skip);
    if (found >= 0) return found < num_experts ? found : -1;
  }
  return -1;
}

GSHARD_TARGET Top2 FindTop2Avx512(const float* logits, int64_t num_experts) {
  Top2 top;
  const float largest = _mm512_reduce_max_ps(MaxOf(logits, num_experts));
  const int64_t first =
      std::max<int64_t>(FindValueAvx512(logits, largest, -1, num_experts), 0);
  // The second best: before the first one's vector, in it, and after it.
  const int64_t begin = first / kLanes * kLanes;
  const int64_t end = std::min<int64_t>(begin + kLanes, num_experts);
  const __m512 beside = _mm512_mask_mov_ps(
      LoadUpTo(logits + begin, end - begin),
      static_cast<__mmask16>(1 << (first - begin)), _mm512_set1_ps(-kInfinity));
  const __m512 others = _mm512_max_ps(MaxOf(logits, begin),
                                      MaxOf(logits + end, num_experts - end));
  const int64_t second = FindValueAvx512(
      logits, _mm512_reduce_max_ps(_mm512_max_ps(beside, others)), first,
      num_experts);
  top.first = static_cast<int32_t>(first);
  top.second = static_cast<int32_t>(second >= 0 ? second : !first);
  return top;
}
#endif  // GSHARD_AVX512

}  // namespace

Top2 FindTop2(const float* logits, int64_t num_experts) {
  if (num_experts == 1) return {};
#ifdef GSHARD_AVX512
  static const bool has_avx512 = __builtin_cpu_supports("avx512f");
  if (has_avx512) return FindTop2Avx512(logits, num_experts);
#endif
  return FindTop2Anywhere(logits, num_experts);
}

GSHARD_SIMD float ExpRow(const float* logits, float max, int64_t num_experts,
                         float* probability) {
  Lanes s0 = {}, s1 = {}, s2 = {}, s3 = {};
  Lanes p0, p1, p2, p3;
  int64_t e = 0;
  // Four chains of sums hide the latency of an add.
  for (; e + 4 * kLanes <= num_experts; e += 4 * kLanes) {
    // Prefetch the next token's row while this one is computed.
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
  // log_sum is rounded, so it may be slightly below the largest logit: Exp
  // tolerates an argument that far above 0.
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
