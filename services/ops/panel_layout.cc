#include "services/ops/panel_layout.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <type_traits>
#include <utility>

#include "services/base/check.h"
#include "services/base/parallel.h"
#include "services/ops/cpu_isa.h"
#include "services/ops/panel_blocks.h"

namespace gshard {
namespace {

#if defined(__x86_64__)

#define GSHARD_AVX512 \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))

// Packs rows i and i + 1 of b, or only row i if there is no second.
GSHARD_AVX512 inline void PackStep(const BFloat16* b, int64_t stride,
                                   bool has_second, __mmask16 mask,
                                   BFloat16* to) {
  const __m512i even = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, b));
  const __m512i odd = _mm512_cvtepu16_epi32(
      _mm256_maskz_loadu_epi16(has_second ? mask : 0, b + stride));
  _mm512_store_si512(to, _mm512_or_si512(even, _mm512_slli_epi32(odd, 16)));
}

GSHARD_AVX512 inline void PackStep(const float* b, int64_t, bool,
                                   __mmask16 mask, float* to) {
  _mm512_store_ps(to, _mm512_maskz_loadu_ps(mask, b));
}

template <typename T>
GSHARD_AVX512 void PackByVectors(const T* b, int64_t stride, int64_t k,
                                 int64_t n, T* to) {
  constexpr int64_t kStep = kPanelStep<T>;
  const int64_t vectors = VectorsOf(n);
  for (int64_t i = 0; i < k; i += kStep, b += kStep * stride) {
    for (int64_t v = 0; v < vectors; ++v, to += 16 * kStep) {
      PackStep(b + 16 * v, stride, i + 1 < k, ColumnMask(n, v), to);
    }
  }
}

#else

template <typename T>
void PackByVectors(const T*, int64_t, int64_t, int64_t, T*) {
  CHECK(HasAvx512());
}

#endif

}  // namespace

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
template void PackPanel(const float*, int64_t, int64_t, int64_t, float*);
template void PackPanel(const BFloat16*, int64_t, int64_t, int64_t, BFloat16*);

bool HasPanels() { return HasAvx2(); }

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
