// Our own matrix product kernels: for bfloat16 by the AVX512_BF16 instruction,
// which adds the products of two elements of k to a float32; and for float32
// with weights packed in advance, by AVX512 or AVX2 (avx2_panel.h), to which
// packed bfloat16 weights are widened, a part of a panel at a time, on
// processors without AVX512_BF16.
//
// Both need b in panels: 48 columns of b as [k][48], or for bfloat16 as
// [(k + 1) / 2][48] pairs of rows. The last panel has 16, 32 or 48 columns. k
// and the columns are padded with zeros.
//
// Elements are summed over k in order, whatever m, n and the panels are, so the
// bits of a row depend on nothing else. With AVX512_BF16, b gives the same bits
// packed in advance or within the call; but an unpacked b stored as [n, k] goes
// to bf16_dots.h. For float32, k is cut into blocks that are summed separately.
// This gives the bits of oneDNN, which matmul.cc calls if b is not packed, as
// oneDNN's packing within a call is better.
//
// Thread-safe.

#ifndef SERVICES_OPS_PANEL_H_
#define SERVICES_OPS_PANEL_H_

#include <cstdint>

#include "services/tensor/bfloat16.h"
#include "services/tensor/tensor.h"

namespace gshard {

inline constexpr int64_t kPanelColumns = 48;

// Depths of these float32 blocks: for b stored as [k, n], as in oneDNN's gemm,
// and for b stored as [n, k], as in oneDNN's matmul.
inline constexpr int64_t kFloat32Depth = 256;
constexpr int64_t TransposedDepth(int64_t k) { return k <= 1024 ? 512 : 1024; }

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

// c [m, n] = a [m, k] times b in panels, plus the old c if `accumulate`.
// Strides are distances in elements between rows; `depth`, of sums in float32,
// is kFloat32Depth or TransposedDepth(k).
void MultiplyPanels(int64_t m, int64_t n, int64_t k, const BFloat16* a,
                    int64_t a_stride, const BFloat16* panels, float* c,
                    int64_t c_stride, bool accumulate,
                    int64_t depth = kFloat32Depth);
void MultiplyPanels(int64_t m, int64_t n, int64_t k, const float* a,
                    int64_t a_stride, const float* panels, float* c,
                    int64_t c_stride, bool accumulate,
                    int64_t depth = kFloat32Depth);

// The same with b [k, n] row-major.
void MultiplyRows(int64_t m, int64_t n, int64_t k, const BFloat16* a,
                  int64_t a_stride, const BFloat16* b, int64_t b_stride,
                  float* c, int64_t c_stride, bool accumulate);

// The same for float32 and at most kFewRows rows of a. Reads b once, in place:
// if b comes from memory, packing it takes longer than the product. REQUIRES: n
// is a multiple of 16.
inline constexpr int64_t kFewRows = 8;
void MultiplyFewRows(int64_t m, int64_t n, int64_t k, const float* a,
                     int64_t a_stride, const float* b, int64_t b_stride,
                     float* c, int64_t c_stride, bool accumulate);

// The same with the transpose of a [k, m], a and b row-major. If `streams`, c
// may be written past the caches, as it is not read soon. T is float or
// BFloat16.
template <typename T>
void MultiplyColumns(int64_t m, int64_t n, int64_t k, const T* a,
                     int64_t a_stride, const T* b, int64_t b_stride, float* c,
                     int64_t c_stride, bool accumulate, bool streams);

}  // namespace gshard

#endif  // SERVICES_OPS_PANEL_H_
