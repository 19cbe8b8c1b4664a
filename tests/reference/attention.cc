#include "tests/reference/attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "services/base/random.h"
#include "tests/reference/cast.h"

namespace gshard::reference {
namespace {

// The offset of element (b, l, n, d) of a [B, L, N, D] tensor.
int64_t At(const Tensor& x, int64_t b, int64_t l, int64_t n, int64_t d) {
  return ((b * x.dim(1) + l) * x.dim(2) + n) * x.dim(3) + d;
}

bool Sees(const Tensor& q, const Tensor& k, const Tensor& key_lengths,
          const AttentionOptions& options, int64_t b, int64_t i, int64_t j) {
  const int64_t queries =
      options.all_queries > 0 ? options.all_queries : q.dim(1);
  return j < key_lengths.i32()[b] &&
         (!options.causal || j <= options.first_query + i + k.dim(1) - queries);
}

// Those of query i; -infinity for keys that it does not see.
std::vector<double> Logits(const Tensor& q, const Tensor& k,
                           const Tensor& key_lengths,
                           const AttentionOptions& options, int64_t b,
                           int64_t n, int64_t i) {
  std::vector<double> logits(k.dim(1), -INFINITY);
  for (int64_t j = 0; j < k.dim(1); ++j) {
    if (!Sees(q, k, key_lengths, options, b, i, j)) continue;
    double dot = 0.0;
    for (int64_t d = 0; d < q.dim(3); ++d) {
      dot += static_cast<double>(q.f32()[At(q, b, i, n, d)]) *
             k.f32()[At(k, b, j, n, d)];
    }
    logits[j] = dot * options.scale;
  }
  return logits;
}

// The factor that dropout applies to one probability.
double DropoutFactor(const AttentionOptions& options, int64_t b, int64_t n,
                     int64_t i, int64_t j) {
  const uint64_t key =
      FoldIn(FoldIn(FoldIn(options.dropout_key, options.first_sentence + b),
                    options.first_head + n),
             options.first_query + i);
  return RandomUniform(key, j) < options.dropout_rate
             ? 0.0
             : 1.0 / (1.0 - options.dropout_rate);
}

}  // namespace

AttentionResult Attention(const Tensor& q, const Tensor& k, const Tensor& v,
                          const Tensor& key_lengths,
                          const AttentionOptions& options) {
  const int64_t queries = q.dim(1), keys = k.dim(1);
  const int64_t heads = q.dim(2), width = q.dim(3);
  std::vector<double> out(q.size(), 0.0);
  std::vector<double> statistics(q.dim(0) * heads * queries * 2, 0.0);
  for (int64_t b = 0; b < q.dim(0); ++b) {
    for (int64_t n = 0; n < heads; ++n) {
      for (int64_t i = 0; i < queries; ++i) {
        const std::vector<double> logits =
            Logits(q, k, key_lengths, options, b, n, i);
        double max = -INFINITY, sum = 0.0;
        for (const double logit : logits) max = std::max(max, logit);
        if (max == -INFINITY) continue;
        for (const double logit : logits) sum += std::exp(logit - max);
        double* const kept = &statistics[((b * heads + n) * queries + i) * 2];
        kept[0] = max;
        kept[1] = 1.0 / sum;
        for (int64_t j = 0; j < keys; ++j) {
          const double p = std::exp(logits[j] - max) / sum;
          for (int64_t d = 0; d < width; ++d) {
            if (p == 0.0) continue;  // padding may be anything, even NaN
            out[At(q, b, i, n, d)] += p * DropoutFactor(options, b, n, i, j) *
                                      v.f32()[At(v, b, j, n, d)];
          }
        }
      }
    }
  }
  return {FromDoubles(q.dims(), out),
          FromDoubles({q.dim(0), heads, queries, 2}, statistics)};
}

AttentionGradients AttentionGradient(const Tensor& q, const Tensor& k,
                                     const Tensor& v, const Tensor& key_lengths,
                                     const AttentionOptions& options,
                                     const Tensor& statistics,
                                     const Tensor& dout) {
  const int64_t queries = q.dim(1), keys = k.dim(1);
  const int64_t heads = q.dim(2), width = q.dim(3);
  std::vector<double> dq(q.size(), 0.0), dk(k.size(), 0.0), dv(v.size(), 0.0);
  for (int64_t b = 0; b < q.dim(0); ++b) {
    for (int64_t n = 0; n < heads; ++n) {
      for (int64_t i = 0; i < queries; ++i) {
        const float* const kept =
            statistics.f32() + ((b * heads + n) * queries + i) * 2;
        std::vector<double> p = Logits(q, k, key_lengths, options, b, n, i);
        for (double& x : p) x = std::exp(x - kept[0]) * kept[1];
        std::vector<double> dp(keys, 0.0);
        double sum = 0.0;
        for (int64_t j = 0; j < keys; ++j) {
          if (!Sees(q, k, key_lengths, options, b, i, j)) continue;
          const double factor = DropoutFactor(options, b, n, i, j);
          for (int64_t d = 0; d < width; ++d) {
            const double upstream = dout.f32()[At(q, b, i, n, d)];
            dp[j] += factor * upstream * v.f32()[At(v, b, j, n, d)];
            dv[At(v, b, j, n, d)] += factor * p[j] * upstream;
          }
          sum += dp[j] * p[j];
        }
        for (int64_t j = 0; j < keys; ++j) {
          if (!Sees(q, k, key_lengths, options, b, i, j)) continue;
          const double dlogit = options.scale * p[j] * (dp[j] - sum);
          for (int64_t d = 0; d < width; ++d) {
            dq[At(q, b, i, n, d)] += dlogit * k.f32()[At(k, b, j, n, d)];
            dk[At(k, b, j, n, d)] += dlogit * q.f32()[At(q, b, i, n, d)];
          }
        }
      }
    }
  }
  return {FromDoubles(q.dims(), dq), FromDoubles(k.dims(), dk),
          FromDoubles(v.dims(), dv)};
}

}  // namespace gshard::reference
