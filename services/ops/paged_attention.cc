#include "services/ops/paged_attention.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/base/check.h"
#include "services/base/parallel.h"
#include "services/ops/simd.h"
#include "services/ops/softmax.h"

namespace gshard {
namespace {

int64_t PagesFor(int64_t length, int64_t P) { return (length + P - 1) / P; }

// scores[n, j] = q[n] keys[j, n], for `count` consecutive positions. Rows of
// scores are `stride` apart.
GSHARD_SIMD void ScoreKeys(const float* q, const float* keys, int64_t count,
                           int64_t heads, int64_t width, float* scores,
                           int64_t stride) {
  for (int64_t j = 0; j < count; ++j) {
    for (int64_t n = 0; n < heads; ++n, keys += width) {
      float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
      for (int64_t i = 0; i < width; ++i) sum += q[n * width + i] * keys[i];
      scores[n * stride + j] = sum;
    }
  }
}

// out[n] += the sum over j of probabilities[n, j] values[j, n].
GSHARD_SIMD void AddValues(const float* probabilities, int64_t stride,
                           const float* values, int64_t count, int64_t heads,
                           int64_t width, float* out) {
  for (int64_t j = 0; j < count; ++j) {
    for (int64_t n = 0; n < heads; ++n, values += width) {
      const float p = probabilities[n * stride + j];
#pragma omp simd
      for (int64_t i = 0; i < width; ++i) out[n * width + i] += p * values[i];
    }
  }
}

}  // namespace

absl::Status CheckPages(const Tensor& pages, const Tensor& lengths, int64_t S,
                        int64_t P) {
  const int64_t T = pages.dim(1);
  for (int64_t r = 0; r < lengths.size(); ++r) {
    const int32_t length = lengths.i32()[r];
    if (length < 0 || length > T * P) {
      return absl::InvalidArgumentError(
          absl::StrCat("lengths must lie in [0, ", T * P, "], got ", length));
    }
    for (int64_t t = 0; t < PagesFor(length, P); ++t) {
      const int32_t page = pages.i32()[r * T + t];
      if (page < 0 || page >= S) {
        return absl::InvalidArgumentError(
            absl::StrCat("pages must lie in [0, ", S, "), got ", page));
      }
    }
  }
  return absl::OkStatus();
}

Tensor PagedAttention(const Tensor& q, const Tensor& keys, const Tensor& values,
                      const Tensor& pages, const Tensor& lengths, float scale) {
  CHECK(q.rank() == 4 && q.dim(1) == 1 && values.dims() == keys.dims());
  const int64_t R = q.dim(0), N = q.dim(2), D = q.dim(3);
  const int64_t P = keys.dim(1), T = pages.dim(1);
  Tensor out(ElementType::kFloat32, q.dims());
  int64_t most = 0;  // longest row, in keys
  for (const int32_t length : lengths.span<int32_t>()) {
    most = std::max<int64_t>(most, length);
  }
  // Position by position, all heads of each, in memory order: decoding is bound
  // by memory reads.
  const auto attend = [&](int64_t r, float* scores) {
    const int64_t length = lengths.i32()[r];
    const float* const query = q.f32() + r * N * D;
    float* const to = out.f32() + r * N * D;
    const auto for_pages = [&](const Tensor& cache, const auto& body) {
      for (int64_t j = 0; j < length; j += P) {
        const int64_t page = pages.i32()[r * T + j / P];
        body(j, std::min(P, length - j), cache.f32() + page * P * N * D);
      }
    };
    for_pages(keys, [&](int64_t j, int64_t count, const float* page) {
      ScoreKeys(query, page, count, N, D, scores + j, length);
    });
    for (int64_t n = 0; n < N; ++n) {
      SoftmaxRow(scores + n * length, length, length, scale);
    }
    std::fill_n(to, N * D, 0.0f);
    for_pages(values, [&](int64_t j, int64_t count, const float* page) {
      AddValues(scores + j, length, page, count, N, D, to);
    });
  };
  ParallelForChunks(R, ChunkSize(N * D * most / 2),
                    [&](int64_t begin, int64_t end) {
                      std::vector<float> scores(N * most);
                      for (int64_t r = begin; r < end; ++r) {
                        attend(r, scores.data());
                      }
                    });
  return out;
}

}  // namespace gshard
