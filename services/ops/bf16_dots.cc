#include "services/ops/bf16_dots.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <memory>

#include "services/base/check.h"
#include "services/ops/cpu_isa.h"
#include "services/ops/panel_blocks.h"
#include "services/tensor/buffer.h"

namespace gshard {

#if defined(__x86_64__)

#define GSHARD_BF16 \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))

namespace {

// Columns of c (rows of b) and rows of c whose sums are in registers at the
// same time.
constexpr int kDotColumns = 4;
constexpr int kDotRows = 6;

// Elements of k per pass: that many of 256 rows of a fit into the level 2
// cache.
constexpr int64_t kDotDepth = 1024;
// Of a pass, rows of a of this many bytes stay in the level 1 cache, and
// columns of b of that many in the level 2 cache, while each is multiplied by
// all of the other.
constexpr int64_t kLevel1Bytes = 24 << 10;
constexpr int64_t kLevel2Bytes = 512 << 10;
// Rows whose stride is a multiple of kAliasBytes map to few sets of the level 1
// cache. Such rows are copied to a buffer with stride kCopyStride.
constexpr int64_t kAliasBytes = 4096;
constexpr int64_t kCopyStride = kDotDepth + 32;

template <int kCount>
using DotSums = __m512[kCount][kDotColumns];

// Adds the products of 32 elements of k, or of fewer at the end.
template <int kCount>
GSHARD_BF16 inline void AddProducts(const BFloat16* a, int64_t a_stride,
                                    const BFloat16* const* b, int64_t i,
                                    int64_t ahead, __mmask32 mask,
                                    DotSums<kCount>& sums) {
  __m512i columns[kDotColumns];
  GSHARD_UNROLL
  for (int j = 0; j < kDotColumns; ++j) {
    columns[j] = _mm512_maskz_loadu_epi16(mask, b[j] + i);
    _mm_prefetch(b[j] + i + ahead, _MM_HINT_T0);
  }
  GSHARD_UNROLL
  for (int r = 0; r < kCount; ++r) {
    const auto row =
        (__m512bh)_mm512_maskz_loadu_epi16(mask, a + r * a_stride + i);
    GSHARD_UNROLL
    for (int j = 0; j < kDotColumns; ++j) {
      sums[r][j] = _mm512_dpbf16_ps(sums[r][j], row, (__m512bh)columns[j]);
    }
  }
}

// Sums of neighbouring elements, alternately of a and b. The masks select all
// elements: without them GCC 12 warns about its own intrinsics.
GSHARD_BF16 inline __m512d AddPairs(__m512 a, __m512 b) {
  return _mm512_castps_pd(
      _mm512_add_ps(_mm512_maskz_unpacklo_ps(0xffff, a, b),
                    _mm512_maskz_unpackhi_ps(0xffff, a, b)));
}

// The sum of the elements of each vector.
GSHARD_BF16 inline __m128 SumEach(const __m512 (&x)[kDotColumns]) {
  const __m512d x01 = AddPairs(x[0], x[1]), x23 = AddPairs(x[2], x[3]);
  const __m512 quarters =
      _mm512_add_ps(_mm512_castpd_ps(_mm512_maskz_unpacklo_pd(0xff, x01, x23)),
                    _mm512_castpd_ps(_mm512_maskz_unpackhi_pd(0xff, x01, x23)));
  const __m256 halves =
      _mm256_add_ps(_mm512_maskz_extractf32x8_ps(0xff, quarters, 0),
                    _mm512_maskz_extractf32x8_ps(0xff, quarters, 1));
  return _mm_add_ps(_mm256_castps256_ps128(halves),
                    _mm256_extractf128_ps(halves, 1));
}

// kCount rows of c, and the columns in `mask`. Prefetches b `ahead` elements
// further on: with few rows, hardware prefetching does not keep up.
template <int kCount>
GSHARD_BF16 void MultiplyDots(int64_t k, const BFloat16* a, int64_t a_stride,
                              const BFloat16* const* b, int64_t ahead, float* c,
                              int64_t c_stride, uint8_t mask, bool accumulate) {
  DotSums<kCount> sums;
  GSHARD_UNROLL
  for (int r = 0; r < kCount; ++r) {
    GSHARD_UNROLL
    for (int j = 0; j < kDotColumns; ++j) sums[r][j] = _mm512_setzero_ps();
  }
  int64_t i = 0;
  for (; i + 32 <= k; i += 32) {
    AddProducts<kCount>(a, a_stride, b, i, ahead, ~0u, sums);
  }
  if (i < k) {
    AddProducts<kCount>(a, a_stride, b, i, ahead, (1u << (k - i)) - 1, sums);
  }
  GSHARD_UNROLL
  for (int r = 0; r < kCount; ++r) {
    float* const to = c + r * c_stride;
    __m128 row = SumEach(sums[r]);
    if (accumulate) row = _mm_add_ps(_mm_maskz_loadu_ps(mask, to), row);
    _mm_mask_storeu_ps(to, mask, row);
  }
}

using DotFunction = void (*)(int64_t k, const BFloat16* a, int64_t a_stride,
                             const BFloat16* const* b, int64_t ahead, float* c,
                             int64_t c_stride, uint8_t mask, bool accumulate);

// Indexed by the number of rows.
constexpr DotFunction kDots[kDotRows + 1] = {
    nullptr,          &MultiplyDots<1>, &MultiplyDots<2>, &MultiplyDots<3>,
    &MultiplyDots<4>, &MultiplyDots<5>, &MultiplyDots<6>};

}  // namespace

void MultiplyTransposed(int64_t m, int64_t n, int64_t k, const BFloat16* a,
                        int64_t a_stride, const BFloat16* b, int64_t b_stride,
                        float* c, int64_t c_stride, bool accumulate) {
  const bool copies = a_stride * sizeof(BFloat16) % kAliasBytes == 0;
  const std::shared_ptr<std::byte> buffer =
      AllocateBuffer(copies ? m * kCopyStride * sizeof(BFloat16) : 0);
  auto* const copy = reinterpret_cast<BFloat16*>(buffer.get());
  for (int64_t i = 0; i < k; i += kDotDepth, accumulate = true) {
    const int64_t depth = std::min(kDotDepth, k - i);
    for (int64_t r = 0; copies && r < m; ++r) {
      std::copy_n(a + r * a_stride + i, depth, copy + r * kCopyStride);
    }
    const BFloat16* const rows = copies ? copy : a + i;
    const int64_t stride = copies ? kCopyStride : a_stride;
    const auto multiply = [&](int64_t row, int64_t end_row, int64_t j) {
      const BFloat16* columns[kDotColumns];
      for (int64_t v = 0; v < kDotColumns; ++v) {
        columns[v] = b + std::min(j + v, n - 1) * b_stride + i;
      }
      const uint8_t mask = (1 << std::min<int64_t>(kDotColumns, n - j)) - 1;
      for (int64_t r = row; r < end_row; r += kDotRows) {
        kDots[std::min<int64_t>(kDotRows, end_row - r)](
            depth, rows + r * stride, stride, columns,
            r == 0 ? kDotColumns * b_stride : 0, c + r * c_stride + j, c_stride,
            mask, accumulate);
      }
    };
    const auto that_fit = [&](int64_t bytes, int64_t step) {
      const int64_t row_bytes = depth * sizeof(BFloat16);
      return std::max<int64_t>(1, bytes / row_bytes / step) * step;
    };
    const int64_t most_rows = that_fit(kLevel1Bytes, kDotRows);
    const int64_t most_columns = that_fit(kLevel2Bytes, kDotColumns);
    for (int64_t column = 0; column < n; column += most_columns) {
      const int64_t end_column = std::min(n, column + most_columns);
      for (int64_t row = 0; row < m; row += most_rows) {
        for (int64_t j = column; j < end_column; j += kDotColumns) {
          multiply(row, std::min(m, row + most_rows), j);
        }
      }
    }
  }
}

#else

void MultiplyTransposed(int64_t, int64_t, int64_t, const BFloat16*, int64_t,
                        const BFloat16*, int64_t, float*, int64_t, bool) {
  CHECK(HasAvx512Bf16());
}

#endif

}  // namespace gshard
