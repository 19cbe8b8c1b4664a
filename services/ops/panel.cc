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

// Packs rows i and i + 1 of b, or only row i if there is no second.
GSHARD_PANEL inline void PackStep(const BFloat16* b, int64_t stride,
                                  bool has_second, __mmask16 mask,
                                  BFloat16* to) {
  const __m512i even = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, b));
  const __m512i odd = _mm512_cvtepu16_epi32(
      _mm256_maskz_loadu_epi16(has_second ? mask : 0, b + stride));
  _mm512_store_si512(to, _mm512_or_si512(even, _mm512_slli_epi32(odd, 16)));
}

GSHARD_PANEL inline void PackStep(const float* b, int64_t, bool, __mmask16 mask,
                                  float* to) {
  _mm512_store_ps(to, _mm512_maskz_loadu_ps(mask, b));
}

template <typename T>
GSHARD_PANEL void PackByVectors(const T* b, int64_t stride, int64_t k,
                                int64_t n, T* to) {
  constexpr int64_t kStep = kPanelStep<T>;
  const int64_t vectors = VectorsOf(n);
  for (int64_t i = 0; i < k; i += kStep, b += kStep * stride) {
    for (int64_t v = 0; v < vectors; ++v, to += 16 * kStep) {
      PackStep(b + 16 * v, stride, i + 1 < k, ColumnMask(n, v), to);
    }
  }
}

template <typename T>
void PackPanel(const T* b, int64_t stride, int64_t k, int64_t n, T* to) {
  if (HasAvx512()) return PackByVectors(b, stride, k, n, to);
  constexpr int64_t kStep = kPanelStep<T>;
  const int64_t width = 16 * VectorsOf(n);
  for (int64_t i = 0; i < k; i += kStep, to += kStep * width) {
    if (n < width || i + kStep > k) std::fill_n(to, kStep * width, T{});
    for (int64_t r = 0; r < std::min(kStep, k - i); ++r, b += stride) {
      for (int64_t j = 0; j < n; ++j) to[j * kStep + r] = b[j];
    }
  }
}

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

// kCount rows and n columns of c; the columns are kWidth vectors. If `streams`,
// c is written past the caches. REQUIRES: IsInLines() if `streams`.
template <int kCount, int kWidth, typename T>
GSHARD_PANEL void MultiplyBlock(int64_t n, int64_t k, const T* a,
                                const Strides& strides, const T* panel,
                                float* c, int64_t c_stride, bool accumulate,
                                bool streams) {
  constexpr int64_t kStep = kPanelStep<T>;
  // To accumulate, bfloat16 starts with c and adds to it. float32 starts at
  // zero, and its sum is added to c at the end.
  constexpr bool kGoesOn = kStep > 1;
  Sums<kCount, kWidth> sums;
  GSHARD_UNROLL
  for (int r = 0; r < kCount; ++r) {
    GSHARD_UNROLL
    for (int v = 0; v < kWidth; ++v) {
      sums[r][v] =
          _mm512_maskz_loadu_ps(kGoesOn && accumulate ? ColumnMask(n, v) : 0,
                                c + r * c_stride + 16 * v);
    }
  }
  for (int64_t i = 0; i + kStep <= k;
       i += kStep, a += strides.step, panel += 16 * kStep * kWidth) {
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
      const __mmask16 mask = ColumnMask(n, v);
      if (!kGoesOn && accumulate) {
        sums[r][v] = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, to), sums[r][v]);
      }
      if (streams) {
        _mm512_stream_ps(to, sums[r][v]);
      } else {
        _mm512_mask_storeu_ps(to, mask, sums[r][v]);
      }
    }
  }
}

template <typename T>
void MultiplyPanel(int64_t m, int64_t n, int64_t k, const T* a,
                   const Strides& strides, const T* panel, float* c,
                   int64_t c_stride, bool accumulate, bool streams = false) {
  if constexpr (std::is_same_v<T, float>) {
    if (!HasAvx512()) {
      return MultiplyAvx2Panel(m, n, k, a, strides.row, strides.step, panel, c,
                               c_stride, accumulate);
    }
  }
  ForEachBlock(m, n, [&]<int kCount, int kWidth>(int64_t r) {
    MultiplyBlock<kCount, kWidth>(n, k, a + r * strides.row, strides, panel,
                                  c + r * c_stride, c_stride, accumulate,
                                  streams);
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
void PackPanel(const T*, int64_t, int64_t, int64_t, T*) {
  CHECK(HasPanels());
}
template <typename T>
void MultiplyPanel(int64_t, int64_t, int64_t, const T*, const Strides&,
                   const T*, float*, int64_t, bool, bool = false) {
  CHECK(HasPanels());
}

#endif

}  // namespace

bool HasPanels() { return HasAvx2(); }

namespace {

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
                    std::as_const(panel).data(), c + j, c_stride,
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
                  panels + PanelOffset<BFloat16>(k, j), c + j, c_stride,
                  accumulate);
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
          c + j, c_stride, accumulate || i > 0);
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
                    c + j, c_stride, accumulate || i > 0);
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
                      panel, c + r * c_stride + j, c_stride, accumulate,
                      streams);
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

Tensor NewPanels(ElementType type, Dims dims, int64_t batch, int64_t rows) {
  const int64_t size = NumElements(dims);
  if (!HasPanels() || size == 0) return Tensor();
  CHECK(size % (batch * rows) == 0);
  const int64_t columns = size / (batch * rows);
  if (rows % 2 != 0 || columns % 16 != 0) return Tensor();
  return Tensor::Panels(type, std::move(dims), rows, size * ElementSize(type));
}

namespace {

// Offset of element i of column j in a panel with n columns.
template <typename T>
int64_t ElementOffset(int64_t n, int64_t i, int64_t j) {
  constexpr int64_t kStep = kPanelStep<T>;
  return (i / kStep * 16 * VectorsOf(n) + j) * kStep + i % kStep;
}

// Packs n columns of k elements each. REQUIRES: no padding is needed.
template <typename T>
void PackColumns(const T* columns, int64_t k, int64_t n, T* to) {
  for (int64_t j = 0; j < n; ++j, columns += k) {
    for (int64_t i = 0; i < k; ++i) to[ElementOffset<T>(n, i, j)] = columns[i];
  }
}

// Calls pack(first column, number of columns, panel) for all panels of
// b [k, n].
template <typename T, typename Pack>
void ForEachPanel(int64_t k, int64_t n, T* panels, Pack pack) {
  ParallelFor((n + kPanelColumns - 1) / kPanelColumns, [&](int64_t i) {
    const int64_t column = i * kPanelColumns;
    pack(column, std::min(kPanelColumns, n - column),
         panels + PanelOffset<T>(k, column));
  });
}

}  // namespace

template <typename T>
void PackPanels(int64_t k, int64_t n, const T* b, T* panels) {
  ForEachPanel(k, n, panels, [&](int64_t column, int64_t columns, T* panel) {
    PackPanel(b + column, n, k, columns, panel);
  });
}
template void PackPanels(int64_t, int64_t, const float*, float*);
template void PackPanels(int64_t, int64_t, const BFloat16*, BFloat16*);

namespace {

template <typename T>
void PackMatrixOf(const Tensor& matrix, int64_t index, bool transposed,
                  Tensor& panels) {
  const int64_t rows = panels.panel_rows(), columns = matrix.size() / rows;
  CHECK(matrix.size() == rows * columns && index >= 0 &&
        (index + 1) * matrix.size() <= panels.size());
  const T* const from = matrix.data<T>();
  T* const to = panels.panels<T>() + index * matrix.size();
  if (!transposed) return PackPanels(rows, columns, from, to);
  ForEachPanel(rows, columns, to, [&](int64_t column, int64_t n, T* panel) {
    PackColumns(from + column * rows, rows, n, panel);
  });
}

}  // namespace

void PackMatrix(const Tensor& matrix, int64_t index, bool transposed,
                Tensor& panels) {
  if (panels.type() == ElementType::kFloat32) {
    PackMatrixOf<float>(matrix, index, transposed, panels);
  } else {
    PackMatrixOf<BFloat16>(matrix, index, transposed, panels);
  }
}

template <typename T>
void ReadPanelColumn(const T* panels, int64_t k, int64_t n, int64_t column,
                     float* to) {
  const int64_t begin = column / kPanelColumns * kPanelColumns;
  const T* const panel = panels + PanelOffset<T>(k, begin);
  for (int64_t i = 0; i < k; ++i) {
    const T element = panel[ElementOffset<T>(n - begin, i, column - begin)];
    if constexpr (std::is_same_v<T, BFloat16>) {
      to[i] = ToFloat(element);
    } else {
      to[i] = element;
    }
  }
}

template void ReadPanelColumn(const float*, int64_t, int64_t, int64_t, float*);
template void ReadPanelColumn(const BFloat16*, int64_t, int64_t, int64_t,
                              float*);

}  // namespace gshard
