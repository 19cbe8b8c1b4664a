#include "services/ops/panel.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "services/base/check.h"
#include "services/base/parallel.h"
#include "services/ops/avx2_panel.h"
#include "services/ops/cast.h"
#include "services/ops/cpu_isa.h"
#include "services/ops/elementwise.h"
#include "services/ops/panel_blocks.h"
#include "services/tensor/buffer.h"

namespace gshard {
namespace {

#if defined(__x86_64__)

// Target of the kernels of both types. The float32 kernels run on processors
// without AVX512_BF16 too, as only the intrinsic _mm512_dpbf16_ps generates
// instructions of that extension.
#define GSHARD_PANEL \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))

// Rows of b packed at a time within a call: 96 KiB, which the level 2 cache
// holds. A smaller depth means more passes over c.
constexpr int64_t kDepth = 1024;

struct alignas(64) PackedDepth {
  BFloat16 elements[PanelOffset<BFloat16>(kDepth, kPanelColumns)];
};

// Sums of kCount rows of c and kWidth vectors of columns. They are in registers
// if all loops over them are unrolled.
template <int kCount, int kWidth>
using Sums = __m512[kCount][kWidth];

// Adds the products of two rows of b, or of the last one alone.
template <int kCount, int kWidth>
GSHARD_PANEL inline void AddStep(const BFloat16* a, int64_t a_stride,
                                 const BFloat16* panel, int64_t rows,
                                 Sums<kCount, kWidth>& sums) {
  __m512i b[kWidth];
  GSHARD_UNROLL
  for (int v = 0; v < kWidth; ++v) b[v] = _mm512_load_si512(panel + 32 * v);
  GSHARD_UNROLL
  for (int r = 0; r < kCount; ++r) {
    int32_t pair = 0;
    std::memcpy(&pair, a + r * a_stride, rows * sizeof(BFloat16));
    const auto x = (__m512bh)_mm512_set1_epi32(pair);
    GSHARD_UNROLL
    for (int v = 0; v < kWidth; ++v) {
      sums[r][v] = _mm512_dpbf16_ps(sums[r][v], x, (__m512bh)b[v]);
    }
  }
}

// Adds the products of one row of b.
template <int kCount, int kWidth>
GSHARD_PANEL inline void AddStep(const float* a, int64_t a_stride,
                                 const float* panel, int64_t,
                                 Sums<kCount, kWidth>& sums) {
  __m512 b[kWidth];
  GSHARD_UNROLL
  for (int v = 0; v < kWidth; ++v) b[v] = _mm512_loadu_ps(panel + 16 * v);
  GSHARD_UNROLL
  for (int r = 0; r < kCount; ++r) {
    const __m512 x = _mm512_set1_ps(a[r * a_stride]);
    GSHARD_UNROLL
    for (int v = 0; v < kWidth; ++v) {
      sums[r][v] = _mm512_fmadd_ps(x, b[v], sums[r][v]);
    }
  }
}

// Columns of c that `mask` selects. All of them are not masked: that is faster.
GSHARD_PANEL inline __m512 LoadSums(const float* from, __mmask16 mask) {
  if (mask == 0xffff) return _mm512_loadu_ps(from);
  return _mm512_maskz_loadu_ps(mask, from);
}

GSHARD_PANEL inline void StoreSums(float* to, __mmask16 mask, __m512 sums) {
  if (mask == 0xffff) return _mm512_storeu_ps(to, sums);
  _mm512_mask_storeu_ps(to, mask, sums);
}

// Layout of a: distances in elements between its rows and between steps of k.
struct Strides {
  int64_t row, step;
};

// Whether all rows of c begin at cache lines and n columns are whole cache
// lines.
bool IsInLines(int64_t n, const float* c, int64_t c_stride) {
  constexpr int64_t kLine = 16;
  return n % kLine == 0 && c_stride % kLine == 0 &&
         reinterpret_cast<uintptr_t>(c) % (kLine * sizeof(float)) == 0;
}

// kCount rows and n columns of c; the columns are kWidth vectors. Each step
// prefetches kLines lines from `line` on. If `streams`, c is written past the
// caches. REQUIRES: IsInLines() if `streams`.
template <int kCount, int kWidth, int kLines, typename T>
GSHARD_PANEL void MultiplyBlock(int64_t n, int64_t k, const T* a,
                                const Strides& strides, const T* panel,
                                const std::byte* line, float* c,
                                int64_t c_stride, bool accumulate,
                                bool streams) {
  constexpr int64_t kStep = kPanelStep<T>;
  // To accumulate, bfloat16 starts with c and adds to it. float32 starts at
  // zero, and its sum is added to c at the end.
  constexpr bool kGoesOn = kStep > 1;
  const auto mask_of = [last = ColumnMask(n, kWidth - 1)](int v) -> __mmask16 {
    return v < kWidth - 1 ? 0xffff : last;
  };
  Sums<kCount, kWidth> sums;
  GSHARD_UNROLL
  for (int r = 0; r < kCount; ++r) {
    GSHARD_UNROLL
    for (int v = 0; v < kWidth; ++v) sums[r][v] = _mm512_setzero_ps();
  }
  if (kGoesOn && accumulate) {
    GSHARD_UNROLL
    for (int r = 0; r < kCount; ++r) {
      GSHARD_UNROLL
      for (int v = 0; v < kWidth; ++v) {
        sums[r][v] = LoadSums(c + r * c_stride + 16 * v, mask_of(v));
      }
    }
  }
  for (int64_t i = 0; i + kStep <= k;
       i += kStep, a += strides.step, panel += 16 * kStep * kWidth) {
    GSHARD_UNROLL
    for (int l = 0; l < kLines; ++l, line += 64) {
      _mm_prefetch(line, _MM_HINT_T1);
    }
    AddStep<kCount, kWidth>(a, strides.row, panel, kStep, sums);
  }
  if (k % kStep != 0) {
    AddStep<kCount, kWidth>(a, strides.row, panel, 1, sums);
  }
  GSHARD_UNROLL
  for (int r = 0; r < kCount; ++r) {
    GSHARD_UNROLL
    for (int v = 0; v < kWidth; ++v) {
      float* const to = c + r * c_stride + 16 * v;
      const __mmask16 mask = mask_of(v);
      if (!kGoesOn && accumulate) {
        sums[r][v] = _mm512_add_ps(LoadSums(to, mask), sums[r][v]);
      }
      if (streams) {
        _mm512_stream_ps(to, sums[r][v]);
      } else {
        StoreSums(to, mask, sums[r][v]);
      }
    }
  }
}

// `next` is the panel that is used next, or null.
template <typename T>
void MultiplyPanel(int64_t m, int64_t n, int64_t k, const T* a,
                   const Strides& strides, const T* panel,
                   std::type_identity_t<const T*> next, float* c,
                   int64_t c_stride, bool accumulate, bool streams = false) {
  if constexpr (std::is_same_v<T, float>) {
    if (!HasAvx512()) {
      return MultiplyAvx2Panel(m, n, k, a, strides.row, strides.step, panel, c,
                               c_stride, accumulate);
    }
  }
  ForEachBlock(m, n, k / kPanelStep<T>, next,
               [&]<int kCount, int kWidth, int kLines>(int64_t r,
                                                       const std::byte* line) {
                 MultiplyBlock<kCount, kWidth, kLines>(
                     n, k, a + r * strides.row, strides, panel, line,
                     c + r * c_stride, c_stride, accumulate, streams);
               });
}

// Rows of b per pass of MultiplyFewRows(): so few that they stay in the level 1
// cache and are read nearly in memory order.
constexpr int64_t kSliceRows = 8;

// Adds the products of `k` rows of b, with n columns, to the sums of kCount
// rows. The sums start at zero if `begins`.
template <int kCount, int kWidth>
GSHARD_PANEL void AddSlice(int64_t n, int64_t k, const float* a,
                           int64_t a_stride, const float* b, int64_t b_stride,
                           float* to, int64_t to_stride, bool begins) {
  constexpr int64_t kColumns = 16 * kWidth;
  int64_t j = 0;
  for (; j + kColumns <= n; j += kColumns) {
    Sums<kCount, kWidth> sums;
    GSHARD_UNROLL
    for (int r = 0; r < kCount; ++r) {
      GSHARD_UNROLL
      for (int v = 0; v < kWidth; ++v) {
        sums[r][v] = _mm512_maskz_loadu_ps(begins ? 0 : 0xffff,
                                           to + r * to_stride + j + 16 * v);
      }
    }
    for (int64_t i = 0; i < k; ++i) {
      const float* const row = b + i * b_stride + j;
      GSHARD_UNROLL
      for (int v = 0; v < kWidth; ++v) {
        _mm_prefetch(row + kSliceRows * b_stride + 16 * v, _MM_HINT_T0);
      }
      AddStep<kCount, kWidth>(a + i, a_stride, row, 1, sums);
    }
    GSHARD_UNROLL
    for (int r = 0; r < kCount; ++r) {
      GSHARD_UNROLL
      for (int v = 0; v < kWidth; ++v) {
        _mm512_storeu_ps(to + r * to_stride + j + 16 * v, sums[r][v]);
      }
    }
  }
  if constexpr (kWidth > 1) {
    if (j < n) {
      AddSlice<kCount, 1>(n - j, k, a, a_stride, b + j, b_stride, to + j,
                          to_stride, begins);
    }
  }
}

template <int kCount>
void AddSliceTo(int64_t n, int64_t k, const float* a, int64_t a_stride,
                const float* b, int64_t b_stride, float* to, int64_t to_stride,
                bool begins) {
  // As many sums as registers can hold, with a vector count that divides the
  // rows of most weight matrices.
  constexpr int kWidth = kCount <= 3 ? 8 : kCount <= 6 ? 4 : 2;
  AddSlice<kCount, kWidth>(n, k, a, a_stride, b, b_stride, to, to_stride,
                           begins);
}

using SliceFunction = void (*)(int64_t n, int64_t k, const float* a,
                               int64_t a_stride, const float* b,
                               int64_t b_stride, float* to, int64_t to_stride,
                               bool begins);

// Indexed by the number of rows.
constexpr SliceFunction kAddSlice[kFewRows + 1] = {
    nullptr,        &AddSliceTo<1>, &AddSliceTo<2>,
    &AddSliceTo<3>, &AddSliceTo<4>, &AddSliceTo<5>,
    &AddSliceTo<6>, &AddSliceTo<7>, &AddSliceTo<8>};

// Makes streaming stores visible before any later store.
void FinishStreams() { _mm_sfence(); }

#else

constexpr int64_t kDepth = 1;

struct Strides {
  int64_t row, step;
};
bool IsInLines(int64_t, const float*, int64_t) { return false; }
void FinishStreams() {}

constexpr int64_t kSliceRows = 1;
constexpr void (*kAddSlice[kFewRows + 1])(int64_t, int64_t, const float*,
                                          int64_t, const float*, int64_t,
                                          float*, int64_t, bool) = {};

struct PackedDepth {
  BFloat16 elements[1];
};

template <typename T>
void MultiplyPanel(int64_t, int64_t, int64_t, const T*, const Strides&,
                   const T*, std::type_identity_t<const T*>, float*, int64_t,
                   bool, bool = false) {
  CHECK(HasPanels());
}

#endif

}  // namespace

namespace {

// The panel after the one that begins at column `column` of b [k, n]. What
// follows the last one in memory is usually multiplied next: further columns,
// or the next expert.
template <typename T>
const T* PanelAfter(int64_t k, int64_t n, int64_t column, const T* panels) {
  return panels + PanelOffset<T>(k, std::min(n, column + kPanelColumns));
}

// As MultiplyPanels(), by the kernels of float32: with the bits of the product
// of the widened matrices.
void MultiplyWidened(int64_t m, int64_t n, int64_t k, const BFloat16* a,
                     int64_t a_stride, const BFloat16* panels, float* c,
                     int64_t c_stride, bool accumulate, int64_t depth) {
  thread_local std::vector<float> rows, panel;
  panel.resize(std::min(depth, k) * kPanelColumns);
  for (int64_t i = 0; i < k; i += depth) {
    const int64_t steps = std::min(depth, k - i);
    // As in the product of float32, see there.
    const int64_t stride = steps + 16;
    rows.resize(m * stride);
    for (int64_t r = 0; r < m; ++r) {
      CastRow(a + r * a_stride + i, rows.data() + r * stride, steps);
    }
    for (int64_t j = 0; j < n; j += kPanelColumns) {
      const int64_t columns = std::min(kPanelColumns, n - j);
      const int64_t width = 16 * VectorsOf(columns);
      WidenAvx2Panel(steps, width,
                     panels + PanelOffset<BFloat16>(k, j) + i * width,
                     panel.data());
      MultiplyPanel(m, columns, steps, rows.data(), {.row = stride, .step = 1},
                    std::as_const(panel).data(), nullptr, c + j, c_stride,
                    accumulate || i > 0);
    }
  }
}

}  // namespace

void MultiplyPanels(int64_t m, int64_t n, int64_t k, const BFloat16* a,
                    int64_t a_stride, const BFloat16* panels, float* c,
                    int64_t c_stride, bool accumulate, int64_t depth) {
  if (!HasAvx512Bf16()) {
    return MultiplyWidened(m, n, k, a, a_stride, panels, c, c_stride,
                           accumulate, depth);
  }
  for (int64_t j = 0; j < n; j += kPanelColumns) {
    MultiplyPanel(m, std::min(kPanelColumns, n - j), k, a,
                  {.row = a_stride, .step = kPanelStep<BFloat16>},
                  panels + PanelOffset<BFloat16>(k, j),
                  PanelAfter(k, n, j, panels), c + j, c_stride, accumulate);
  }
}

void MultiplyPanels(int64_t m, int64_t n, int64_t k, const float* a,
                    int64_t a_stride, const float* panels, float* c,
                    int64_t c_stride, bool accumulate, int64_t depth) {
  // AVX2 has so few registers that a is read often, and rows that are a large
  // power of two apart share few lines of the cache.
  const bool copies = !HasAvx512() && m >= kFewRows;
  thread_local std::vector<float> copy;
  for (int64_t i = 0; i < k; i += depth) {
    const int64_t steps = std::min(depth, k - i);
    const float* rows = a + i;
    int64_t stride = a_stride;
    if (copies) {
      stride = steps + 16;
      copy.resize(m * stride);
      for (int64_t r = 0; r < m; ++r) {
        std::copy_n(rows + r * a_stride, steps, copy.data() + r * stride);
      }
      rows = copy.data();
    }
    for (int64_t j = 0; j < n; j += kPanelColumns) {
      const int64_t columns = std::min(kPanelColumns, n - j);
      MultiplyPanel(
          m, columns, steps, rows, {.row = stride, .step = kPanelStep<float>},
          panels + PanelOffset<float>(k, j) + i * 16 * VectorsOf(columns),
          PanelAfter(k, n, j, panels) + i * kPanelColumns, c + j, c_stride,
          accumulate || i > 0);
    }
  }
}

void MultiplyRows(int64_t m, int64_t n, int64_t k, const BFloat16* a,
                  int64_t a_stride, const BFloat16* b, int64_t b_stride,
                  float* c, int64_t c_stride, bool accumulate) {
  // On the heap: static thread-local storage is taken from the stack of every
  // thread, and threads of the metrics server have only 100 KiB.
  thread_local const auto buffer = std::make_unique<PackedDepth>();
  BFloat16* const panel = buffer->elements;
  for (int64_t i = 0; i < k; i += kDepth) {
    const int64_t depth = std::min(kDepth, k - i);
    for (int64_t j = 0; j < n; j += kPanelColumns) {
      const int64_t columns = std::min(kPanelColumns, n - j);
      PackPanel(b + i * b_stride + j, b_stride, depth, columns, panel);
      MultiplyPanel(m, columns, depth, a + i,
                    {.row = a_stride, .step = kPanelStep<BFloat16>}, panel,
                    nullptr, c + j, c_stride, accumulate || i > 0);
    }
  }
}

void MultiplyFewRows(int64_t m, int64_t n, int64_t k, const float* a,
                     int64_t a_stride, const float* b, int64_t b_stride,
                     float* c, int64_t c_stride, bool accumulate) {
  CHECK(m >= 1 && m <= kFewRows && n % 16 == 0);
  thread_local std::vector<float> sums;
  for (int64_t i = 0; i < k; i += kFloat32Depth, accumulate = true) {
    // A sum that is added to c is computed separately first.
    if (accumulate) sums.resize(m * n);
    float* const to = accumulate ? sums.data() : c;
    const int64_t stride = accumulate ? n : c_stride;
    const int64_t end = std::min(k, i + kFloat32Depth);
    for (int64_t s = i; s < end; s += kSliceRows) {
      const int64_t rows = std::min(kSliceRows, end - s);
      if (HasAvx512()) {
        kAddSlice[m](n, rows, a + s, a_stride, b + s * b_stride, b_stride, to,
                     stride, s == i);
      } else {
        AddAvx2Slice(m, n, rows, a + s, a_stride, b + s * b_stride, b_stride,
                     to, stride, s == i);
      }
    }
    for (int64_t r = 0; accumulate && r < m; ++r) {
      float* const row = c + r * c_stride;
      AddRow(row, to + r * stride, row, n);
    }
  }
}

template <typename T>
void MultiplyColumns(int64_t m, int64_t n, int64_t k, const T* a,
                     int64_t a_stride, const T* b, int64_t b_stride, float* c,
                     int64_t c_stride, bool accumulate, bool streams) {
  constexpr int64_t kStep = kPanelStep<T>;
  // k is processed in blocks of equal bytes for both types; for float32, such a
  // block is the depth of one sum.
  constexpr int64_t kBlockDepth = kFloat32Depth * kStep;
  const int64_t most_depth = std::min(kBlockDepth, k + k % kStep);
  const int64_t a_columns = (m + 15) / 16 * 16;
  const std::shared_ptr<std::byte> buffer =
      AllocateBuffer(most_depth * (a_columns + kPanelColumns) * sizeof(T));
  auto* const panel = reinterpret_cast<T*>(buffer.get());
  T* const a_panels = panel + most_depth * kPanelColumns;
  streams = streams && HasAvx512() && !accumulate && k <= kBlockDepth &&
            IsInLines(n, c, c_stride);
  for (int64_t i = 0; i < k; i += kBlockDepth, accumulate = true) {
    const int64_t depth = std::min(kBlockDepth, k - i);
    for (int64_t r = 0; r < m; r += kPanelColumns) {
      PackPanel(a + i * a_stride + r, a_stride, depth,
                std::min(kPanelColumns, m - r),
                a_panels + PanelOffset<T>(depth, r));
    }
    for (int64_t j = 0; j < n; j += kPanelColumns) {
      const int64_t columns = std::min(kPanelColumns, n - j);
      PackPanel(b + i * b_stride + j, b_stride, depth, columns, panel);
      for (int64_t r = 0; r < m; r += kPanelColumns) {
        const int64_t rows = std::min(kPanelColumns, m - r);
        MultiplyPanel(rows, columns, depth, a_panels + PanelOffset<T>(depth, r),
                      {.row = kStep, .step = 16 * kStep * VectorsOf(rows)},
                      panel, nullptr, c + r * c_stride + j, c_stride,
                      accumulate, streams);
      }
    }
  }
  if (streams) FinishStreams();
}
template void MultiplyColumns(int64_t, int64_t, int64_t, const float*, int64_t,
                              const float*, int64_t, float*, int64_t, bool,
                              bool);
template void MultiplyColumns(int64_t, int64_t, int64_t, const BFloat16*,
                              int64_t, const BFloat16*, int64_t, float*,
                              int64_t, bool, bool);

}  // namespace gshard
