// Products by our own kernels, for processors with AVX512: of bfloat16, by the
// instruction that adds the products of two elements of k to a float32
// (AVX512_BF16), and of float32 with weights that lie ready.
//
// Both want b in panels: 48 columns of b as [k][48], of bfloat16 as
// [(k + 1) / 2][48] pairs of rows, the last panel with 16, 32 or 48. Zeros
// stand where k or the columns end early.
//
// The sum of an element goes through k in order, whatever m, n and the panels
// are: a row's bits depend on nothing else. Of bfloat16, b gives the same bits
// packed ahead or within the call, but b that was stored as [n, k] and is not
// packed goes to bf16_dots.h. Of float32, some elements of k at a time have a
// sum of their own: these are the bits of oneDNN, which matmul.cc calls where b
// is not packed, and whose packing within a call is better.
//
// Thread-safe.

#ifndef SERVICES_OPS_PANEL_H_
#define SERVICES_OPS_PANEL_H_

#include <cstdint>

#include "services/tensor/bfloat16.h"
#include "services/tensor/tensor.h"

namespace gshard {

inline constexpr int64_t kPanelColumns = 48;

// How many those are if b was stored as [k, n], for which oneDNN's gemm is
// called, and as [n, k], for which its matmul is.
inline constexpr int64_t kFloat32Depth = 256;
constexpr int64_t TransposedDepth(int64_t k) { return k <= 1024 ? 512 : 1024; }

// Rows of b that lie side by side. T is float or BFloat16 here and below.
template <typename T>
inline constexpr int64_t kPanelStep = sizeof(float) / sizeof(T);

// Whether this processor multiplies panels; Multiply...() and PackMatrix()
// REQUIRE it.
template <typename T>
bool HasPanels();
template <>
bool HasPanels<float>();
template <>
bool HasPanels<BFloat16>();

// Where the panel of column `column`, a multiple of 48, begins in the panels of
// a matrix with k rows: in elements.
template <typename T>
constexpr int64_t PanelOffset(int64_t k, int64_t column) {
  return column * ((k + kPanelStep<T> - 1) / kPanelStep<T> * kPanelStep<T>);
}

// A tensor of f32 or bf16 for `batch` matrices of `rows` rows in panels,
// contents undefined. Empty unless this processor multiplies panels and they
// need no zeros: the panels then take the memory of the elements.
Tensor NewPanels(ElementType type, Dims dims, int64_t batch, int64_t rows);

// Sets matrix `index` of `panels` to `matrix`, which is of the same type: a
// row-major [rows, columns] or, if `transposed`, [columns, rows].
void PackMatrix(const Tensor& matrix, int64_t index, bool transposed,
                Tensor& panels);

// The panels of a row-major b [k, n], which take as many elements. REQUIRES: no
// zeros are needed, as by NewPanels().
template <typename T>
void PackPanels(int64_t k, int64_t n, const T* b, T* panels);

// The k elements of one column of a matrix in panels [k, n], as float32.
template <typename T>
void ReadPanelColumn(const T* panels, int64_t k, int64_t n, int64_t column,
                     float* to);

// The elements of a tensor in panels or row-major.
template <typename T>
const T* ElementsOf(const Tensor& tensor) {
  return tensor.panel_rows() > 0 ? tensor.panels<T>() : tensor.data<T>();
}

// c [m, n] = a [m, k] times b in panels, plus the old c if `accumulate`.
// Strides are elements between rows; `depth` is one of the two above.
void MultiplyPanels(int64_t m, int64_t n, int64_t k, const BFloat16* a,
                    int64_t a_stride, const BFloat16* panels, float* c,
                    int64_t c_stride, bool accumulate);
void MultiplyPanels(int64_t m, int64_t n, int64_t k, const float* a,
                    int64_t a_stride, const float* panels, float* c,
                    int64_t c_stride, bool accumulate,
                    int64_t depth = kFloat32Depth);

// The same with b [k, n] as rows.
void MultiplyRows(int64_t m, int64_t n, int64_t k, const BFloat16* a,
                  int64_t a_stride, const BFloat16* b, int64_t b_stride,
                  float* c, int64_t c_stride, bool accumulate);

// The same of float32 for at most kFewRows rows of a, by reading b once as it
// lies: to pack it takes longer than the product, if it comes from memory.
// REQUIRES: n is a multiple of 16, HasPanels<float>().
inline constexpr int64_t kFewRows = 8;
void MultiplyFewRows(int64_t m, int64_t n, int64_t k, const float* a,
                     int64_t a_stride, const float* b, int64_t b_stride,
                     float* c, int64_t c_stride, bool accumulate);

// The same with the transpose of a [k, m], both as rows. If it `streams`, c may
// go past the caches, as it is not read soon. T is float or BFloat16.
template <typename T>
void MultiplyColumns(int64_t m, int64_t n, int64_t k, const T* a,
                     int64_t a_stride, const T* b, int64_t b_stride, float* c,
                     int64_t c_stride, bool accumulate, bool streams);

}  // namespace gshard

#endif  // SERVICES_OPS_PANEL_H_
