// Products of bfloat16 by the processor's own instruction (AVX512_BF16), which
// adds the products of two elements of k to a float32.
//
// It wants pairs of rows of b interleaved: a panel is 48 columns of b as
// [(k + 1) / 2][48] pairs, with zeros where k or the columns end early.
//
// The sum of an element goes through k in order, whatever m, n and the panels
// are: a row's bits depend on nothing else, and b gives the same bits packed
// ahead or within the call.
//
// Thread-safe.

#ifndef SERVICES_OPS_BF16_PANEL_H_
#define SERVICES_OPS_BF16_PANEL_H_

#include <cstdint>

#include "services/tensor/bfloat16.h"

namespace gshard {

inline constexpr int64_t kPanelColumns = 48;

// Whether this processor has the instruction; the functions below REQUIRE it.
bool HasBf16Panels();

// Elements of a panel of `k` rows.
constexpr int64_t PanelSize(int64_t k) { return (k + k % 2) * kPanelColumns; }

// Rows of b [k, n], `stride` elements apart, to ceil(n / 48) panels that follow
// each other in `to`. REQUIRES: `to` is aligned to 64 bytes.
void PackPanels(const BFloat16* b, int64_t stride, int64_t k, int64_t n,
                BFloat16* to);

// c [m, n] = a [m, k] times b in panels, plus the old c if `accumulate`.
// Strides are elements between rows.
void MultiplyPanels(int64_t m, int64_t n, int64_t k, const BFloat16* a,
                    int64_t a_stride, const BFloat16* panels, float* c,
                    int64_t c_stride, bool accumulate);

// The same with b [k, n] as rows.
void MultiplyRows(int64_t m, int64_t n, int64_t k, const BFloat16* a,
                  int64_t a_stride, const BFloat16* b, int64_t b_stride,
                  float* c, int64_t c_stride, bool accumulate);

}  // namespace gshard

#endif  // SERVICES_OPS_BF16_PANEL_H_
