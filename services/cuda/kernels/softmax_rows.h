// Kernels built on a softmax, one warp per row: attention to pages and cross
// entropy (cross_entropy.h).

#ifndef SERVICES_CUDA_KERNELS_SOFTMAX_ROWS_H_
#define SERVICES_CUDA_KERNELS_SOFTMAX_ROWS_H_

#include <cmath>
#include <cstdint>

#include "services/cuda/kernels/rows.h"
#include "services/ops/exp.h"

namespace gshard::cuda {

inline constexpr float kNoMaximum = -__builtin_huge_valf();

// What is subtracted from logits with this maximum: of none, and of impossible
// ones only, exp(-inf - 0) is 0.
GSHARD_KERNEL_INLINE float Base(float max) {
  return max == kNoMaximum ? 0.0f : max;
}

// The maximum of x[j] * scale over a row. By a warp.
GSHARD_KERNEL_INLINE float RowMax(const float* x, int64_t size, float scale) {
  float max = kNoMaximum;
  for (int64_t j = Lane(); j < size; j += kWarp) {
    const float at = x[j] * scale;
    max = at > max ? at : max;
  }
  return WarpMax(max);
}

// Paged attention (services/ops/paged_attention.h), one warp per (row, head).
// Online softmax over 32 keys at a time: each lane computes the logit of one
// key, then accumulates its columns of the values. A new maximum logit rescales
// the sums so far.
struct PagedAttentionRows {
  static constexpr int kColumnsOfLane = 8;
  static constexpr int64_t kMostWidth = kColumnsOfLane * kWarp;
  // Keys whose values are on their way from memory at the same time.
  static constexpr int kValuesAtOnce = 4;

  const float* q;  // [R, N, D]
  const float* keys;
  const float* values;
  const int32_t* pages;    // [R, most_pages]
  const int32_t* lengths;  // [R]
  int64_t heads, width, positions, most_pages;
  float scale;
  float* out;

  // The offset in keys and values of position j of a row.
  GSHARD_KERNEL_INLINE int64_t At(int64_t row, int64_t j, int64_t head) const {
    const int64_t page = pages[row * most_pages + j / positions];
    return ((page * positions + j % positions) * heads + head) * width;
  }

  // The product of a query and a key, added up from column 0 on; by four
  // columns at once if `fours`.
  GSHARD_KERNEL_INLINE float Dot(const float* query, const float* key,
                                 bool fours) const {
    float dot = 0.0f;
    if (!fours) {
      for (int64_t d = 0; d < width; ++d) dot += query[d] * key[d];
      return dot;
    }
    for (int64_t d = 0; d < width; d += 4) {
      const auto a = *reinterpret_cast<const Four<float>*>(query + d);
      const auto b = *reinterpret_cast<const Four<float>*>(key + d);
      GSHARD_UNROLL for (int i = 0; i < 4; ++i) dot += a.at[i] * b.at[i];
    }
    return dot;
  }

  GSHARD_KERNEL_INLINE void operator()(int64_t row_and_head) const {
    const int64_t row = row_and_head / heads, head = row_and_head % heads;
    const float* const query = q + row_and_head * width;
    const bool fours = width % 4 == 0 && AreFours(q) && AreFours(keys);
    const int64_t length = lengths[row];
    float sums[kColumnsOfLane] = {};
    float max = kNoMaximum, total = 0.0f;
    for (int64_t first = 0; first < length; first += kWarp) {
      const int64_t j = first + Lane();
      const int64_t at = j < length ? At(row, j, head) : 0;
      const float logit =
          j < length ? Dot(query, keys + at, fours) * scale : kNoMaximum;
      const float larger = WarpMax(logit > max ? logit : max);
      const float rescale = Exp(max - larger);
      const float p = j < length ? Exp(logit - larger) : 0.0f;
      max = larger;
      total = total * rescale + WarpSum(p);
      GSHARD_UNROLL for (int c = 0; c < kColumnsOfLane; ++c) {
        sums[c] *= rescale;
      }
      const int64_t left = length - first;
      for (int k = 0; k < kWarp && k < left; k += kValuesAtOnce) {
        const float* value[kValuesAtOnce];
        float of_key[kValuesAtOnce];
        GSHARD_UNROLL for (int u = 0; u < kValuesAtOnce; ++u) {
          value[u] = values + ShuffleOffset(at, k + u) + Lane();
          of_key[u] = ShuffleFloat(p, k + u);
        }
        GSHARD_UNROLL for (int c = 0; c < kColumnsOfLane; ++c) {
          if (c * kWarp + Lane() >= width) break;
          float x[kValuesAtOnce];
          GSHARD_UNROLL for (int u = 0; u < kValuesAtOnce; ++u) {
            x[u] = k + u < left ? value[u][c * kWarp] : 0.0f;
          }
          GSHARD_UNROLL for (int u = 0; u < kValuesAtOnce; ++u) {
            if (k + u < left) sums[c] += of_key[u] * x[u];
          }
        }
      }
    }
    const float factor = length > 0 ? 1.0f / total : 0.0f;
    GSHARD_UNROLL for (int c = 0; c < kColumnsOfLane; ++c) {
      const int64_t d = c * kWarp + Lane();
      if (d < width) out[row_and_head * width + d] = sums[c] * factor;
    }
  }
};

// The loss of each row for its label; 0 where the label is negative.
struct CrossEntropyRows {
  // Logits of a lane that are on their way from memory at the same time.
  static constexpr int kAtOnce = 8;

  const float* logits;    // [rows, vocabulary]
  const int32_t* labels;  // [rows]
  int64_t vocabulary;
  float smoothing;
  float z_loss;
  double* losses;      // [rows]
  float* log_sum_exp;  // [rows]

  GSHARD_KERNEL_INLINE void operator()(int64_t row) const {
    const int32_t label = labels[row];
    const float* const x = logits + row * vocabulary;
    // A larger logit rescales the sum of a lane so far.
    float max = kNoMaximum, sum = 0.0f, of_logits = 0.0f;
    const int64_t size = label < 0 ? 0 : vocabulary;
    for (int64_t first = Lane(); first < size; first += kAtOnce * kWarp) {
      float at[kAtOnce];
      float larger = max;
      GSHARD_UNROLL for (int k = 0; k < kAtOnce; ++k) {
        const int64_t i = first + k * kWarp;
        at[k] = i < size ? x[i] : kNoMaximum;
        of_logits += i < size ? at[k] : 0.0f;
        larger = at[k] > larger ? at[k] : larger;
      }
      sum *= Exp(max - Base(larger));
      GSHARD_UNROLL for (int k = 0; k < kAtOnce; ++k) {
        sum += Exp(at[k] - Base(larger));
      }
      max = larger;
    }
    const float of_row = WarpMax(max);
    sum = WarpSum(sum * Exp(max - Base(of_row)));
    of_logits = WarpSum(of_logits);
    if (Lane() != 0) return;
    const float log_sum = label < 0 ? 0.0f : Base(of_row) + logf(sum);
    log_sum_exp[row] = log_sum;
    if (label < 0) {
      losses[row] = 0.0;
      return;
    }
    const double lse = log_sum;
    const float off = smoothing / static_cast<float>(vocabulary);
    losses[row] = lse - (1.0 - smoothing) * x[label] -
                  static_cast<double>(off) * of_logits + z_loss * lse * lse;
  }
};

// out [1]: the sum of all losses, in their order. Called for one element.
struct SumOfLosses {
  const double* losses;
  int64_t rows;
  float* out;

  GSHARD_KERNEL_INLINE void operator()(int64_t) const {
    double sum = 0.0;
    for (int64_t r = 0; r < rows; ++r) sum += losses[r];
    *out = static_cast<float>(sum);
  }
};

struct CrossEntropyGradientElements {
  const float* logits;
  const int32_t* labels;
  const float* log_sum_exp;
  const float* dloss;  // [1]
  int64_t vocabulary;
  float smoothing;
  float z_loss;
  float* dlogits;

  GSHARD_KERNEL_INLINE void operator()(int64_t i) const {
    const int64_t row = i / vocabulary;
    const int32_t label = labels[row];
    if (label < 0) {
      dlogits[i] = 0.0f;
      return;
    }
    const float upstream = *dloss, lse = log_sum_exp[row];
    const float off = upstream * smoothing / static_cast<float>(vocabulary);
    float d =
        Exp(logits[i] - lse) * (upstream * (1.0f + 2.0f * z_loss * lse)) - off;
    if (i % vocabulary == label) d -= upstream * (1.0f - smoothing);
    dlogits[i] = d;
  }
};

}  // namespace gshard::cuda

#endif  // SERVICES_CUDA_KERNELS_SOFTMAX_ROWS_H_
