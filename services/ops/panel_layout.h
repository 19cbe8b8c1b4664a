// The layout of matrices in panels, for the products of panel.h: 48 columns of
// a matrix [k, n] as [k][48], or for bfloat16 as [(k + 1) / 2][48] pairs of
// rows. The last panel has 16, 32 or 48 columns. k and the columns are padded
// with zeros. Those of int8 are in int8_panel.h.
//
// Thread-safe.

#ifndef SERVICES_OPS_PANEL_LAYOUT_H_
#define SERVICES_OPS_PANEL_LAYOUT_H_

#include <cstdint>

#include "services/tensor/bfloat16.h"
#include "services/tensor/tensor.h"

namespace gshard {

inline constexpr int64_t kPanelColumns = 48;

// Rows of b that are interleaved. T is float or BFloat16 here and below.
template <typename T>
inline constexpr int64_t kPanelStep = sizeof(float) / sizeof(T);

// Whether this processor has the kernels; Multiply...() and PackMatrix()
// REQUIRE it. Those of bfloat16 that take an unpacked b also REQUIRE
// HasAvx512Bf16(): without it, matmul.cc widens such a b as a whole.
bool HasPanels();

// The offset in elements of the panel that begins at column `column`, a
// multiple of 48, in the panels of a matrix with k rows.
template <typename T>
constexpr int64_t PanelOffset(int64_t k, int64_t column) {
  return column * ((k + kPanelStep<T> - 1) / kPanelStep<T> * kPanelStep<T>);
}

// An f32 or bf16 tensor for `batch` matrices with `rows` rows in panels,
// contents undefined. Empty if this processor lacks the kernels or if the
// panels would need padding: panels have exactly the memory of their elements.
Tensor NewPanels(ElementType type, Dims dims, int64_t batch, int64_t rows);

// Packs `matrix`, which has the type of `panels`, into matrix `index`. It is a
// row-major [rows, columns] or, if `transposed`, [columns, rows].
void PackMatrix(const Tensor& matrix, int64_t index, bool transposed,
                Tensor& panels);

// Packs a row-major b [k, n] into as many elements. REQUIRES: no padding is
// needed, as in NewPanels().
template <typename T>
void PackPanels(int64_t k, int64_t n, const T* b, T* panels);

// The k elements of one column of a matrix in panels [k, n], as float32.
template <typename T>
void ReadPanelColumn(const T* panels, int64_t k, int64_t n, int64_t column,
                     float* to);

// The elements of a tensor, in panels or row-major.
template <typename T>
const T* ElementsOf(const Tensor& tensor) {
  return tensor.panel_rows() > 0 ? tensor.panels<T>() : tensor.data<T>();
}

// Packs n <= 48 columns of a row-major b, whose rows are `stride` elements
// apart, into the panel `to`.
template <typename T>
void PackPanel(const T* b, int64_t stride, int64_t k, int64_t n, T* to);

}  // namespace gshard

#endif  // SERVICES_OPS_PANEL_LAYOUT_H_
