#include "services/ops/bf16_panel.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "services/base/check.h"
#include "services/base/parallel.h"
#include "services/ops/cpu_isa.h"
#include "services/ops/panel_blocks.h"
#include "services/tensor/buffer.h"

namespace gshard {

#if defined(__x86_64__)

#define GSHARD_BF16 \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))

namespace {

// Rows of b that are packed at a time, within a call: 96 KiB, which the level 2
// cache holds. Fewer mean more rounds over c.
constexpr int64_t kDepth = 1024;

struct alignas(64) PackedDepth {
  BFloat16 elements[PanelOffset(kDepth, kPanelColumns)];
};

GSHARD_BF16 void PackPanel(const BFloat16* b, int64_t stride, int64_t k,
                           int64_t n, BFloat16* to) {
  const int64_t vectors = VectorsOf(n);
  for (int64_t i = 0; i < k; i += 2, b += 2 * stride) {
    for (int64_t v = 0; v < vectors; ++v, to += 32) {
      const __mmask16 mask = ColumnMask(n, v);
      const __m512i even =
          _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, b + 16 * v));
      const __m512i odd = _mm512_cvtepu16_epi32(
          _mm256_maskz_loadu_epi16(i + 1 < k ? mask : 0, b + stride + 16 * v));
      _mm512_store_si512(to, _mm512_or_si512(even, _mm512_slli_epi32(odd, 16)));
    }
  }
}

// Sums of kCount rows of c and kWidth vectors of columns; in registers, as long
// as all loops over them are unrolled.
template <int kCount, int kWidth>
using Sums = __m512[kCount][kWidth];

// Adds two rows of b.
template <int kCount, int kWidth>
GSHARD_BF16 inline void AddPair(const BFloat16* a, int64_t a_stride,
                                const BFloat16* pairs, int bytes,
                                Sums<kCount, kWidth>& sums) {
  __m512i b[kWidth];
  GSHARD_UNROLL
  for (int v = 0; v < kWidth; ++v) b[v] = _mm512_load_si512(pairs + 32 * v);
  GSHARD_UNROLL
  for (int r = 0; r < kCount; ++r) {
    int32_t pair = 0;
    std::memcpy(&pair, a + r * a_stride, bytes);
    const auto x = (__m512bh)_mm512_set1_epi32(pair);
    GSHARD_UNROLL
    for (int v = 0; v < kWidth; ++v) {
      sums[r][v] = _mm512_dpbf16_ps(sums[r][v], x, (__m512bh)b[v]);
    }
  }
}

// kCount rows of c and n columns, which are kWidth vectors.
template <int kCount, int kWidth>
GSHARD_BF16 void MultiplyBlock(int64_t n, int64_t k, const BFloat16* a,
                               int64_t a_stride, const BFloat16* panel,
                               float* c, int64_t c_stride, bool accumulate) {
  Sums<kCount, kWidth> sums;
  GSHARD_UNROLL
  for (int r = 0; r < kCount; ++r) {
    GSHARD_UNROLL
    for (int v = 0; v < kWidth; ++v) {
      sums[r][v] = _mm512_maskz_loadu_ps(accumulate ? ColumnMask(n, v) : 0,
                                         c + r * c_stride + 16 * v);
    }
  }
  for (int64_t i = 0; i + 1 < k; i += 2, panel += 32 * kWidth) {
    AddPair<kCount, kWidth>(a + i, a_stride, panel, 2 * sizeof(BFloat16), sums);
  }
  if (k % 2 == 1) {
    AddPair<kCount, kWidth>(a + k - 1, a_stride, panel, sizeof(BFloat16), sums);
  }
  GSHARD_UNROLL
  for (int r = 0; r < kCount; ++r) {
    GSHARD_UNROLL
    for (int v = 0; v < kWidth; ++v) {
      _mm512_mask_storeu_ps(c + r * c_stride + 16 * v, ColumnMask(n, v),
                            sums[r][v]);
    }
  }
}

void MultiplyPanel(int64_t m, int64_t n, int64_t k, const BFloat16* a,
                   int64_t a_stride, const BFloat16* panel, float* c,
                   int64_t c_stride, bool accumulate) {
  ForEachBlock(m, n, [&]<int kCount, int kWidth>(int64_t r) {
    MultiplyBlock<kCount, kWidth>(n, k, a + r * a_stride, a_stride, panel,
                                  c + r * c_stride, c_stride, accumulate);
  });
}

}  // namespace

void MultiplyPanels(int64_t m, int64_t n, int64_t k, const BFloat16* a,
                    int64_t a_stride, const BFloat16* panels, float* c,
                    int64_t c_stride, bool accumulate) {
  for (int64_t j = 0; j < n; j += kPanelColumns) {
    MultiplyPanel(m, std::min(kPanelColumns, n - j), k, a, a_stride,
                  panels + PanelOffset(k, j), c + j, c_stride, accumulate);
  }
}

void MultiplyRows(int64_t m, int64_t n, int64_t k, const BFloat16* a,
                  int64_t a_stride, const BFloat16* b, int64_t b_stride,
                  float* c, int64_t c_stride, bool accumulate) {
  // On the heap: static thread-local storage comes out of the stack of every
  // thread, and threads of the metrics server have 100 KiB.
  thread_local const auto buffer = std::make_unique<PackedDepth>();
  BFloat16* const panel = buffer->elements;
  for (int64_t i = 0; i < k; i += kDepth) {
    const int64_t depth = std::min(kDepth, k - i);
    for (int64_t j = 0; j < n; j += kPanelColumns) {
      const int64_t columns = std::min(kPanelColumns, n - j);
      PackPanel(b + i * b_stride + j, b_stride, depth, columns, panel);
      MultiplyPanel(m, columns, depth, a + i, a_stride, panel, c + j, c_stride,
                    accumulate || i > 0);
    }
  }
}

namespace {

// Columns of c, rows of b, whose sums are in registers at the same time with
// those of kDotRows rows.
constexpr int kDotColumns = 4;
constexpr int kDotRows = 6;

// Elements of k that are multiplied at a time: so many of 256 rows of a fit
// into the level 2 cache.
constexpr int64_t kDotDepth = 1024;
// Rows at a multiple of so many bytes share a few lines of the level 1 cache:
// such are copied, and so far apart.
constexpr int64_t kAliasBytes = 4096;
constexpr int64_t kCopyStride = kDotDepth + 32;

template <int kCount>
using DotSums = __m512[kCount][kDotColumns];

// Adds the products of 32 elements of k, or fewer.
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

// Sums of neighbours, of a and b in turn. With masks of all elements, as GCC 12
// warns of its own functions without.
GSHARD_BF16 inline __m512d AddPairs(__m512 a, __m512 b) {
  return _mm512_castps_pd(
      _mm512_add_ps(_mm512_maskz_unpacklo_ps(0xffff, a, b),
                    _mm512_maskz_unpackhi_ps(0xffff, a, b)));
}

// The sums of the elements of each.
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

// kCount rows of c and the columns in `mask`. What is `ahead` in b is wanted
// next: with few rows, the processor's own prefetching does not keep up.
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

// By the number of rows.
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
    for (int64_t j = 0; j < n; j += kDotColumns) {
      const BFloat16* columns[kDotColumns];
      for (int64_t v = 0; v < kDotColumns; ++v) {
        columns[v] = b + std::min(j + v, n - 1) * b_stride + i;
      }
      const uint8_t mask = (1 << std::min<int64_t>(kDotColumns, n - j)) - 1;
      for (int64_t r = 0; r < m; r += kDotRows) {
        kDots[std::min<int64_t>(kDotRows, m - r)](
            depth, rows + r * stride, stride, columns,
            r == 0 ? kDotColumns * b_stride : 0, c + r * c_stride + j, c_stride,
            mask, accumulate);
      }
    }
  }
}

#else

namespace {

void PackPanel(const BFloat16*, int64_t, int64_t, int64_t, BFloat16*) {
  CHECK(HasAvx512Bf16());
}

}  // namespace

void MultiplyPanels(int64_t, int64_t, int64_t, const BFloat16*, int64_t,
                    const BFloat16*, float*, int64_t, bool) {
  CHECK(HasAvx512Bf16());
}

void MultiplyRows(int64_t, int64_t, int64_t, const BFloat16*, int64_t,
                  const BFloat16*, int64_t, float*, int64_t, bool) {
  CHECK(HasAvx512Bf16());
}

void MultiplyTransposed(int64_t, int64_t, int64_t, const BFloat16*, int64_t,
                        const BFloat16*, int64_t, float*, int64_t, bool) {
  CHECK(HasAvx512Bf16());
}

#endif

Tensor NewPanels(Dims dims, int64_t batch, int64_t rows) {
  const int64_t size = NumElements(dims);
  if (!HasAvx512Bf16() || size == 0) return Tensor();
  CHECK(size % (batch * rows) == 0);
  const int64_t columns = size / (batch * rows);
  if (rows % 2 != 0 || columns % 16 != 0) return Tensor();
  return Tensor::Panels(ElementType::kBFloat16, std::move(dims), rows,
                        size * sizeof(BFloat16));
}

void PackMatrix(const Tensor& matrix, int64_t index, Tensor& panels) {
  const int64_t rows = panels.panel_rows(), columns = matrix.size() / rows;
  CHECK(matrix.size() == rows * columns && index >= 0 &&
        (index + 1) * matrix.size() <= panels.size());
  const BFloat16* const from = matrix.data<BFloat16>();
  BFloat16* const to = panels.panels<BFloat16>() + index * matrix.size();
  ParallelFor((columns + kPanelColumns - 1) / kPanelColumns, [&](int64_t i) {
    const int64_t column = i * kPanelColumns;
    PackPanel(from + column, columns, rows,
              std::min(kPanelColumns, columns - column),
              to + PanelOffset(rows, column));
  });
}

}  // namespace gshard
