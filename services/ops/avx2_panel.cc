#include "services/ops/avx2_panel.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>

#include "services/base/check.h"
#include "services/ops/panel_blocks.h"

namespace gshard {

#if defined(__x86_64__)

namespace {

#define GSHARD_AVX2 __attribute__((target("avx2,fma")))

// Rows of c per block if their columns are 2 vectors: the sums take 12 of 16
// registers.
constexpr int64_t kRows = 6;

// Adds the products of kCount rows of a with k rows of b and kWidth vectors of
// columns to `sums`, which are in registers as all loops over them are
// unrolled.
template <int kCount, int kWidth>
GSHARD_AVX2 inline void AddProducts(int64_t k, const float* a,
                                    int64_t row_stride, int64_t step,
                                    const float* b, int64_t b_stride,
                                    __m256 (&sums)[kCount][kWidth]) {
  for (int64_t i = 0; i < k; ++i, a += step, b += b_stride) {
    __m256 columns[kWidth];
    GSHARD_UNROLL
    for (int v = 0; v < kWidth; ++v) columns[v] = _mm256_loadu_ps(b + 8 * v);
    GSHARD_UNROLL
    for (int r = 0; r < kCount; ++r) {
      const __m256 x = _mm256_broadcast_ss(a + r * row_stride);
      GSHARD_UNROLL
      for (int v = 0; v < kWidth; ++v) {
        sums[r][v] = _mm256_fmadd_ps(x, columns[v], sums[r][v]);
      }
    }
  }
}

// As MultiplyAvx2Panel(), for kCount rows and kWidth vectors of columns, of
// which the first n columns are stored.
template <int kCount, int kWidth>
GSHARD_AVX2 void MultiplyBlock(int64_t n, int64_t k, const float* a,
                               int64_t row_stride, int64_t step, const float* b,
                               int64_t b_stride, float* c, int64_t c_stride,
                               bool accumulate) {
  __m256 sums[kCount][kWidth];
  GSHARD_UNROLL
  for (int r = 0; r < kCount; ++r) {
    GSHARD_UNROLL
    for (int v = 0; v < kWidth; ++v) sums[r][v] = _mm256_setzero_ps();
  }
  AddProducts<kCount, kWidth>(k, a, row_stride, step, b, b_stride, sums);
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  GSHARD_UNROLL
  for (int v = 0; v < kWidth; ++v) {
    const __m256i mask = _mm256_cmpgt_epi32(
        _mm256_set1_epi32(static_cast<int32_t>(n - 8 * v)), lane);
    GSHARD_UNROLL
    for (int r = 0; r < kCount; ++r) {
      float* const to = c + r * c_stride + 8 * v;
      if (accumulate) {
        sums[r][v] = _mm256_add_ps(_mm256_maskload_ps(to, mask), sums[r][v]);
      }
      _mm256_maskstore_ps(to, mask, sums[r][v]);
    }
  }
}

// As AddAvx2Slice(), for kCount rows, with as many sums as registers can hold.
template <int kCount>
GSHARD_AVX2 void AddSliceTo(int64_t n, int64_t k, const float* a,
                            int64_t a_stride, const float* b, int64_t b_stride,
                            float* to, int64_t to_stride, bool begins) {
  constexpr int kWidth = kCount == 1 ? 8 : kCount <= 3 ? 4 : 2;
  const auto add = [&]<int kVectors>(int64_t j) GSHARD_AVX2 {
    __m256 sums[kCount][kVectors];
    GSHARD_UNROLL
    for (int r = 0; r < kCount; ++r) {
      GSHARD_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        sums[r][v] = begins ? _mm256_setzero_ps()
                            : _mm256_loadu_ps(to + r * to_stride + j + 8 * v);
      }
    }
    AddProducts<kCount, kVectors>(k, a, a_stride, 1, b + j, b_stride, sums);
    GSHARD_UNROLL
    for (int r = 0; r < kCount; ++r) {
      GSHARD_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        _mm256_storeu_ps(to + r * to_stride + j + 8 * v, sums[r][v]);
      }
    }
  };
  int64_t j = 0;
  for (; j + 8 * kWidth <= n; j += 8 * kWidth) {
    add.template operator()<kWidth>(j);
  }
  for (; j < n; j += 16) add.template operator()<2>(j);
}

// Calls call<rows>() for 1 to kRows rows.
template <typename Call>
void WithRows(int64_t rows, const Call& call) {
  switch (rows) {
    case 1:
      return call.template operator()<1>();
    case 2:
      return call.template operator()<2>();
    case 3:
      return call.template operator()<3>();
    case 4:
      return call.template operator()<4>();
    case 5:
      return call.template operator()<5>();
    default:
      return call.template operator()<kRows>();
  }
}

}  // namespace

void MultiplyAvx2Panel(int64_t m, int64_t n, int64_t k, const float* a,
                       int64_t row_stride, int64_t step, const float* panel,
                       float* c, int64_t c_stride, bool accumulate) {
  const int64_t width = 16 * VectorsOf(n);
  if (width == kPanelColumns && m <= 2) {
    // All columns at once: a panel from memory is read in its order.
    const auto multiply = m == 1 ? MultiplyBlock<1, 6> : MultiplyBlock<2, 6>;
    return multiply(n, k, a, row_stride, step, panel, width, c, c_stride,
                    accumulate);
  }
  for (int64_t j = 0; j < n; j += 16) {
    for (int64_t r = 0; r < m; r += kRows) {
      WithRows(std::min(kRows, m - r), [&]<int kCount>() {
        MultiplyBlock<kCount, 2>(n - j, k, a + r * row_stride, row_stride, step,
                                 panel + j, width, c + r * c_stride + j,
                                 c_stride, accumulate);
      });
    }
  }
}

void AddAvx2Slice(int64_t m, int64_t n, int64_t k, const float* a,
                  int64_t a_stride, const float* b, int64_t b_stride, float* to,
                  int64_t to_stride, bool begins) {
  for (int64_t r = 0; r < m; r += kRows) {
    WithRows(std::min(kRows, m - r), [&]<int kCount>() {
      AddSliceTo<kCount>(n, k, a + r * a_stride, a_stride, b, b_stride,
                         to + r * to_stride, to_stride, begins);
    });
  }
}

GSHARD_AVX2 void WidenAvx2Panel(int64_t steps, int64_t width,
                                const BFloat16* panel, float* to) {
  const __m256i upper = _mm256_set1_epi32(static_cast<int32_t>(0xffff0000));
  for (int64_t i = 0; i < steps; i += 2, to += width) {
    for (int64_t j = 0; j < width; j += 8, panel += 16, to += 8) {
      const __m256i pairs =
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(panel));
      _mm256_storeu_ps(to, _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)));
      _mm256_storeu_ps(to + width,
                       _mm256_castsi256_ps(_mm256_and_si256(pairs, upper)));
    }
  }
}

#else

void MultiplyAvx2Panel(int64_t, int64_t, int64_t, const float*, int64_t,
                       int64_t, const float*, float*, int64_t, bool) {
  CHECK(false);
}
void AddAvx2Slice(int64_t, int64_t, int64_t, const float*, int64_t,
                  const float*, int64_t, float*, int64_t, bool) {
  CHECK(false);
}
void WidenAvx2Panel(int64_t, int64_t, const BFloat16*, float*) { CHECK(false); }

#endif

}  // namespace gshard
