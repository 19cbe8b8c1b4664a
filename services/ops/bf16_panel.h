// Products of bfloat16 by the processor's own instruction (AVX512_BF16), which
// adds the products of two elements of k to a float32.
//
// It wants pairs of rows of b interleaved: a panel is 48 columns of b as
// [(k + 1) / 2][48] pairs, the last one has 16, 32 or 48. Zeros stand where k
// or the columns end early.
//
// The sum of an element goes through k in order, whatever m, n and the panels
// are: a row's bits depend on nothing else, and b gives the same bits packed
// ahead or within the call. Where b is stored as [n, k] nothing is packed, and
// the sum has sixteen parts, likewise of k alone.
//
// NewPanels apart, all of it REQUIRES HasAvx512Bf16() of cpu_isa.h.
// Thread-safe.

#ifndef SERVICES_OPS_BF16_PANEL_H_
#define SERVICES_OPS_BF16_PANEL_H_

#include <cstdint>

#include "services/tensor/bfloat16.h"
#include "services/tensor/tensor.h"

namespace gshard {

inline constexpr int64_t kPanelColumns = 48;

// Where the panel of column `column`, a multiple of 48, begins in the panels of
// a matrix with k rows: in elements.
constexpr int64_t PanelOffset(int64_t k, int64_t column) {
  return column * (k + k % 2);
}

// A bf16 tensor for `batch` matrices of `rows` rows in panels, contents
// undefined. Empty unless this processor multiplies panels and they need no
// zeros: the panels then take the memory of the elements.
Tensor NewPanels(Dims dims, int64_t batch, int64_t rows);

// Sets matrix `index` of `panels` to `matrix`, which is bf16 and row-major.
void PackMatrix(const Tensor& matrix, int64_t index, Tensor& panels);

// Of a bf16 tensor of either form.
inline const BFloat16* Bf16Elements(const Tensor& tensor) {
  return tensor.panel_rows() > 0 ? tensor.panels<BFloat16>()
                                 : tensor.data<BFloat16>();
}

// c [m, n] = a [m, k] times b in panels, plus the old c if `accumulate`.
// Strides are elements between rows.
void MultiplyPanels(int64_t m, int64_t n, int64_t k, const BFloat16* a,
                    int64_t a_stride, const BFloat16* panels, float* c,
                    int64_t c_stride, bool accumulate);

// The same with b stored as [n, k].
void MultiplyTransposed(int64_t m, int64_t n, int64_t k, const BFloat16* a,
                        int64_t a_stride, const BFloat16* b, int64_t b_stride,
                        float* c, int64_t c_stride, bool accumulate);

// The same with b [k, n] as rows.
void MultiplyRows(int64_t m, int64_t n, int64_t k, const BFloat16* a,
                  int64_t a_stride, const BFloat16* b, int64_t b_stride,
                  float* c, int64_t c_stride, bool accumulate);

}  // namespace gshard

#endif  // SERVICES_OPS_BF16_PANEL_H_
