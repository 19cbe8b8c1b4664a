#include "services/ops/int8_panel.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "services/base/check.h"
#include "services/base/parallel.h"
#include "services/ops/cpu_isa.h"
#include "services/ops/panel_blocks.h"
#include "services/ops/simd.h"
#include "services/tensor/buffer.h"

namespace gshard {
namespace {

constexpr int64_t kColumns = kInt8PanelColumns;
static_assert(kColumns == kPanelColumns);  // ForEachBlock() divides such panels
constexpr int32_t kZero = 128;             // added to the elements of a

int64_t RoundUp(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Rounds x * to to nearest, ties to even; 0 if `to` is 0.
inline int32_t Round(float x, float to) {
  return static_cast<int32_t>(std::rint(to == 0.0f ? 0.0f : x * to));
}

// The bits of a float without its sign. They compare like absolute values, with
// NaN above all numbers.
inline int32_t Size(float x) { return std::bit_cast<int32_t>(x) & 0x7fffffff; }

// The largest absolute value; not finite if an element is not finite.
GSHARD_SIMD float LargestOf(const float* x, int64_t size) {
  int32_t most = 0;
  for (int64_t i = 0; i < size; ++i) most = std::max(most, Size(x[i]));
  return std::bit_cast<float>(most);
}

// Four rows of a panel before quantization, padded with zeros.
using FourRows = float[4][kColumns];

GSHARD_SIMD void FindLargest(const FourRows& rows, int32_t* most) {
  for (int64_t r = 0; r < 4; ++r) {
    for (int64_t j = 0; j < kColumns; ++j) {
      most[j] = std::max(most[j], Size(rows[r][j]));
    }
  }
}

// Quantizes four rows and adds them to the column sums. `fours` packs the four
// values of each column.
GSHARD_SIMD void RoundRows(const FourRows& rows, const float* to, int32_t* sums,
                           uint32_t* fours) {
  for (int64_t j = 0; j < kColumns; ++j) {
    uint32_t four = 0;
    for (int64_t r = 0; r < 4; ++r) {
      const int32_t x = Round(rows[r][j], to[j]);
      sums[j] += x;
      four |= (static_cast<uint32_t>(x) & 0xff) << (8 * r);
    }
    fours[j] = four;
  }
}

// Quantizes n columns of a matrix with k rows. Element [i, j] is
// matrix[i * row_step + j * column_step].
void RoundPanel(const float* matrix, int64_t row_step, int64_t column_step,
                int64_t k, int64_t n, int8_t* bytes) {
  const int64_t width = Int8PanelWidth(n);
  const Int8Panel<int8_t> panel(bytes, k, width);
  FourRows rows = {};
  const auto read = [&](int64_t i) {
    for (int64_t r = 0; r < 4; ++r) {
      for (int64_t j = 0; j < n; ++j) {
        rows[r][j] =
            i + r < k ? matrix[(i + r) * row_step + j * column_step] : 0.0f;
      }
    }
  };
  int32_t most[kColumns] = {}, sums[kColumns] = {};
  for (int64_t i = 0; i < k; i += 4) {
    read(i);
    FindLargest(rows, most);
  }
  float to[kColumns] = {};
  for (int64_t j = 0; j < width; ++j) {
    const Int8Scale scale(std::bit_cast<float>(most[j]));
    to[j] = scale.to;
    std::memcpy(panel.scales + j * sizeof(float), &scale.back, sizeof(float));
  }
  for (int64_t i = 0; i < k; i += 4) {
    uint32_t fours[kColumns];
    read(i);
    RoundRows(rows, to, sums, fours);
    std::memcpy(bytes + i * width, fours, width * sizeof(uint32_t));
  }
  for (int64_t j = 0; j < width; ++j) {
    const int32_t correction = kZero * sums[j];
    std::memcpy(panel.corrections + j * sizeof(int32_t), &correction,
                sizeof(int32_t));
  }
}

GSHARD_SIMD void RoundRowPlainly(const float* x, int64_t k, float to,
                                 uint8_t* row) {
  for (int64_t i = 0; i < k; ++i) {
    row[i] = static_cast<uint8_t>(Round(x[i], to) + kZero);
  }
}

// Computes m rows of c for one panel; `next` is the one after it.
using PanelFunction = void (*)(int64_t m, int64_t n, int64_t k,
                               const uint8_t* a, const float* a_scales,
                               const int8_t* panel, const int8_t* next,
                               float* c, int64_t c_stride);

void MultiplyPlainly(int64_t m, int64_t n, int64_t k, const uint8_t* a,
                     const float* a_scales, const int8_t* bytes, const int8_t*,
                     float* c, int64_t c_stride) {
  const int64_t width = Int8PanelWidth(n), stride = RoundUp(k, 4);
  const Int8Panel<const int8_t> panel(bytes, k, width);
  for (int64_t r = 0; r < m; ++r) {
    int32_t sums[kColumns] = {};
    for (int64_t i = 0; i < stride; ++i) {
      const int8_t* const b = bytes + i / 4 * width * 4 + i % 4;
      const int32_t x = a[r * stride + i];
      for (int64_t j = 0; j < width; ++j) sums[j] += x * b[4 * j];
    }
    for (int64_t j = 0; j < n; ++j) {
      float scale;
      int32_t correction;
      std::memcpy(&scale, panel.scales + j * sizeof(float), sizeof(float));
      std::memcpy(&correction, panel.corrections + j * sizeof(int32_t),
                  sizeof(int32_t));
      c[r * c_stride + j] =
          static_cast<float>(sums[j] - correction) * (a_scales[r] * scale);
    }
  }
}

#if defined(__x86_64__)

#define GSHARD_VNNI \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")))

GSHARD_VNNI void RoundRowByVectors(const float* x, int64_t k, float to,
                                   uint8_t* row) {
  const __m512 factor = _mm512_set1_ps(to);
  const __m512i zero = _mm512_set1_epi32(kZero);
  for (int64_t i = 0; i < k; i += 16) {
    const __mmask16 mask =
        k - i >= 16 ? 0xffff : static_cast<__mmask16>((1u << (k - i)) - 1);
    const __m512 scaled =
        _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, x + i), factor);
    // If the scale is NaN, elements may be NaN; these become 0.
    const __mmask16 ordered = _mm512_cmp_ps_mask(
        _mm512_abs_ps(scaled), _mm512_set1_ps(128.0f), _CMP_LT_OQ);
    const __m512i rounded = _mm512_maskz_cvtps_epi32(ordered, scaled);
    _mm512_mask_cvtepi32_storeu_epi8(row + i, mask,
                                     _mm512_add_epi32(rounded, zero));
  }
}

// Not __m512i, whose elements have 64 bits: with it, GCC 12 copies each sum to
// the stack in each iteration, which halves the speed.
using Sums16 = int32_t __attribute__((vector_size(64)));

// kCount rows and n columns of c; the columns are kWidth vectors. Each step
// prefetches kLines lines from `line` on.
template <int kCount, int kWidth, int kLines>
GSHARD_VNNI void MultiplyBlock(int64_t n, int64_t k, const uint8_t* a,
                               const float* a_scales, const int8_t* bytes,
                               const std::byte* line, float* c,
                               int64_t c_stride) {
  const int64_t stride = (k + 3) / 4 * 4;
  const int8_t* b = bytes;
  Sums16 sums[kCount][kWidth];
  GSHARD_UNROLL
  for (int r = 0; r < kCount; ++r) {
    GSHARD_UNROLL
    for (int v = 0; v < kWidth; ++v) sums[r][v] = Sums16{};
  }
  for (int64_t i = 0; i < stride; i += 4, b += 64 * kWidth) {
    GSHARD_UNROLL
    for (int l = 0; l < kLines; ++l, line += 64) {
      _mm_prefetch(line, _MM_HINT_T1);
    }
    __m512i columns[kWidth];
    GSHARD_UNROLL
    for (int v = 0; v < kWidth; ++v) columns[v] = _mm512_load_si512(b + 64 * v);
    GSHARD_UNROLL
    for (int r = 0; r < kCount; ++r) {
      int32_t four;
      std::memcpy(&four, a + r * stride + i, sizeof(four));
      const __m512i row = _mm512_set1_epi32(four);
      GSHARD_UNROLL
      for (int v = 0; v < kWidth; ++v) {
        sums[r][v] =
            (Sums16)_mm512_dpbusd_epi32((__m512i)sums[r][v], row, columns[v]);
      }
    }
  }
  const int8_t* const scales = b;
  const int8_t* const corrections = scales + 64 * kWidth;
  GSHARD_UNROLL
  for (int v = 0; v < kWidth; ++v) {
    const __mmask16 mask = ColumnMask(n, v);
    const __m512 scale = _mm512_load_ps(scales + 64 * v);
    const __m512i correction = _mm512_load_si512(corrections + 64 * v);
    GSHARD_UNROLL
    for (int r = 0; r < kCount; ++r) {
      // The mask selects all elements: without it GCC 12 warns about its own
      // intrinsic.
      const __m512 sum = _mm512_maskz_cvtepi32_ps(
          0xffff, _mm512_sub_epi32((__m512i)sums[r][v], correction));
      _mm512_mask_storeu_ps(
          c + r * c_stride + 16 * v, mask,
          _mm512_mul_ps(sum,
                        _mm512_mul_ps(_mm512_set1_ps(a_scales[r]), scale)));
    }
  }
}

void MultiplyByVectors(int64_t m, int64_t n, int64_t k, const uint8_t* a,
                       const float* a_scales, const int8_t* panel,
                       const int8_t* next, float* c, int64_t c_stride) {
  ForEachBlock(m, n, RoundUp(k, 4) / 4, next,
               [&]<int kCount, int kWidth, int kLines>(int64_t r,
                                                       const std::byte* line) {
                 MultiplyBlock<kCount, kWidth, kLines>(
                     n, k, a + r * RoundUp(k, 4), a_scales + r, panel, line,
                     c + r * c_stride, c_stride);
               });
}

#define GSHARD_AVX2 __attribute__((target("avx2")))

using Sums8 = int32_t __attribute__((vector_size(32)));  // see Sums16

// Rows of c per block if their columns are 16: the sums take 12 of 16
// registers, since each has a vector for 4 columns.
constexpr int64_t kAvx2Rows = 3;

// Rows [0, m) of a with 16 bits an element.
GSHARD_SIMD void Widen(const uint8_t* a, int64_t size, int16_t* to) {
  for (int64_t i = 0; i < size; ++i) to[i] = a[i];
}

// kCount rows and 16 * kWidth columns, of which the first n are stored. Rows of
// a have 16 bits an element, and those of the panel are `width` columns apart.
template <int kCount, int kWidth>
GSHARD_AVX2 void MultiplyAvx2Block(int64_t n, int64_t k, const int16_t* a,
                                   const float* a_scales, const int8_t* b,
                                   int64_t width, const int8_t* scales,
                                   const int8_t* corrections, float* c,
                                   int64_t c_stride) {
  constexpr int kVectors = 4 * kWidth;  // of 4 columns, each with two sums
  const int64_t stride = RoundUp(k, 4);
  Sums8 sums[kCount][kVectors];
  GSHARD_UNROLL
  for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 12
    for (int v = 0; v < kVectors; ++v) sums[r][v] = Sums8{};
  }
  for (int64_t i = 0; i < stride; i += 4, b += 4 * width) {
    __m256i rows[kCount];
    GSHARD_UNROLL
    for (int r = 0; r < kCount; ++r) {
      int64_t four;
      std::memcpy(&four, a + r * stride + i, sizeof(four));
      rows[r] = _mm256_set1_epi64x(four);
    }
#pragma GCC unroll 12
    for (int v = 0; v < kVectors; ++v) {
      const __m256i columns = _mm256_cvtepi8_epi16(
          _mm_load_si128(reinterpret_cast<const __m128i*>(b + 16 * v)));
      GSHARD_UNROLL
      for (int r = 0; r < kCount; ++r) {
        sums[r][v] += (Sums8)_mm256_madd_epi16(rows[r], columns);
      }
    }
  }
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
#pragma GCC unroll 6
  for (int v = 0; v < kVectors / 2; ++v) {
    const __m256i mask = _mm256_cmpgt_epi32(
        _mm256_set1_epi32(static_cast<int32_t>(n - 8 * v)), lane);
    const __m256 scale =
        _mm256_load_ps(reinterpret_cast<const float*>(scales) + 8 * v);
    const __m256i correction =
        _mm256_load_si256(reinterpret_cast<const __m256i*>(corrections) + v);
    GSHARD_UNROLL
    for (int r = 0; r < kCount; ++r) {
      const __m256i eight = _mm256_permute4x64_epi64(
          _mm256_hadd_epi32((__m256i)sums[r][2 * v],
                            (__m256i)sums[r][2 * v + 1]),
          _MM_SHUFFLE(3, 1, 2, 0));
      const __m256 sum =
          _mm256_cvtepi32_ps(_mm256_sub_epi32(eight, correction));
      _mm256_maskstore_ps(
          c + r * c_stride + 8 * v, mask,
          _mm256_mul_ps(sum,
                        _mm256_mul_ps(_mm256_set1_ps(a_scales[r]), scale)));
    }
  }
}

void MultiplyByAvx2(int64_t m, int64_t n, int64_t k, const uint8_t* a,
                    const float* a_scales, const int8_t* bytes, const int8_t*,
                    float* c, int64_t c_stride) {
  const int64_t width = Int8PanelWidth(n), stride = RoundUp(k, 4);
  const Int8Panel<const int8_t> panel(bytes, k, width);
  thread_local std::vector<int16_t> wide;
  wide.resize(kAvx2Rows * stride);
  for (int64_t r = 0; r < m; r += kAvx2Rows) {
    const int64_t rows = std::min(kAvx2Rows, m - r);
    Widen(a + r * stride, rows * stride, wide.data());
    const auto block = [&]<int kCount, int kWidth>(int64_t j) {
      MultiplyAvx2Block<kCount, kWidth>(n - j, k, wide.data(), a_scales + r,
                                        bytes + 4 * j, width,
                                        panel.scales + j * sizeof(float),
                                        panel.corrections + j * sizeof(int32_t),
                                        c + r * c_stride + j, c_stride);
    };
    // One row takes all columns at once: a panel from memory is read in its
    // order.
    if (rows == 1 && width == kColumns) {
      block.template operator()<1, 3>(0);
      continue;
    }
    for (int64_t j = 0; j < n; j += 16) {
      if (rows == 1) block.template operator()<1, 1>(j);
      if (rows == 2) block.template operator()<2, 1>(j);
      if (rows == 3) block.template operator()<3, 1>(j);
    }
  }
}

#else

constexpr PanelFunction MultiplyByAvx2 = MultiplyPlainly;
void RoundRowByVectors(const float*, int64_t, float, uint8_t*) {
  CHECK(HasAvx512Vnni());
}
constexpr PanelFunction MultiplyByVectors = MultiplyPlainly;

#endif

}  // namespace

Tensor NewInt8Panels(Dims dims, int64_t batch, int64_t rows) {
  const int64_t size = NumElements(dims);
  CHECK(size > 0 && rows <= kMaxInt8Depth && size % (batch * rows) == 0);
  const int64_t columns = size / (batch * rows);
  return Tensor::Panels(ElementType::kInt8, std::move(dims), rows,
                        batch * Int8MatrixBytes(rows, columns));
}

void RoundMatrix(const Tensor& matrix, int64_t index, bool transposed,
                 Tensor& panels) {
  const int64_t rows = panels.panel_rows(), columns = matrix.size() / rows;
  const int64_t bytes = Int8MatrixBytes(rows, columns);
  CHECK(matrix.size() == rows * columns && index >= 0 &&
        (index + 1) * bytes <= static_cast<int64_t>(panels.bytes()));
  const float* const from = matrix.f32();
  int8_t* const to = panels.panels<int8_t>() + index * bytes;
  ParallelFor((columns + kColumns - 1) / kColumns, [&](int64_t i) {
    const int64_t column = i * kColumns;
    const int64_t column_step = transposed ? rows : 1;
    RoundPanel(from + column * column_step, transposed ? 1 : columns,
               column_step, rows, std::min(kColumns, columns - column),
               to + Int8PanelOffset(rows, column));
  });
}

Int8Rows::Int8Rows(const float* rows, int64_t m, int64_t k)
    : k_(k),
      elements_(AllocateBuffer(m * stride())),
      scales_(AllocateBuffer(m * sizeof(float))) {
  auto* const elements = reinterpret_cast<uint8_t*>(elements_.get());
  auto* const scales = reinterpret_cast<float*>(scales_.get());
  const auto round = HasAvx512Vnni() ? &RoundRowByVectors : &RoundRowPlainly;
  ParallelForChunks(m, ChunkSize(k), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Int8Scale scale(LargestOf(rows + i * k, k));
      uint8_t* const row = elements + i * stride();
      round(rows + i * k, k, scale.to, row);
      std::fill(row + k, row + stride(), 0);  // multiplied by zeros of b
      scales[i] = scale.back;
    }
  });
}

void MultiplyInt8(int64_t m, int64_t n, const Int8Rows& a, int64_t first,
                  const int8_t* panels, float* c, int64_t c_stride) {
  const PanelFunction multiply = HasAvx512Vnni() ? MultiplyByVectors
                                 : HasAvx2()     ? MultiplyByAvx2
                                                 : MultiplyPlainly;
  for (int64_t j = 0; j < n; j += kColumns) {
    multiply(m, std::min(kColumns, n - j), a.k(), a.row(first),
             a.scales() + first, panels + Int8PanelOffset(a.k(), j),
             panels + Int8PanelOffset(a.k(), std::min(n, j + kColumns)), c + j,
             c_stride);
  }
}

void ReadInt8Column(const int8_t* panels, int64_t k, int64_t n, int64_t column,
                    float* to) {
  const int64_t begin = column / kColumns * kColumns;
  const int64_t width = Int8PanelWidth(n - begin);
  const Int8Panel<const int8_t> panel(panels + Int8PanelOffset(k, begin), k,
                                      width);
  const int64_t j = column - begin;
  float scale;
  std::memcpy(&scale, panel.scales + j * sizeof(float), sizeof(float));
  for (int64_t i = 0; i < k; ++i) {
    to[i] = scale * panel.elements[(i / 4 * width + j) * 4 + i % 4];
  }
}

}  // namespace gshard
