// The float32 kernels of panel.h for processors with AVX2 and FMA but without
// AVX512: the same panels, the same order of sums, and thereby the same bits.
//
// Thread-safe. REQUIRES of all functions: HasAvx2().

#ifndef SERVICES_OPS_AVX2_PANEL_H_
#define SERVICES_OPS_AVX2_PANEL_H_

#include <cstdint>

#include "services/tensor/bfloat16.h"

namespace gshard {

// c [m, n] = a [m, k] times one panel, n <= kPanelColumns columns of b, plus
// the old c if `accumulate`. Element (i, l) of a is at
// a[i * row_stride + l * step].
void MultiplyAvx2Panel(int64_t m, int64_t n, int64_t k, const float* a,
                       int64_t row_stride, int64_t step, const float* panel,
                       float* c, int64_t c_stride, bool accumulate);

// to [m, n] = a [m, k] b [k, n], plus the old `to` unless `begins`; b is
// row-major and read in place, with few rows, so that it is read nearly in the
// order of memory. REQUIRES: n is a multiple of 16.
void AddAvx2Slice(int64_t m, int64_t n, int64_t k, const float* a,
                  int64_t a_stride, const float* b, int64_t b_stride, float* to,
                  int64_t to_stride, bool begins);

// `panel` [steps, width] of bfloat16 as a panel of float32. REQUIRES: `steps` is
// even, `width` a multiple of 16.
void WidenAvx2Panel(int64_t steps, int64_t width, const BFloat16* panel,
                    float* to);

}  // namespace gshard

#endif  // SERVICES_OPS_AVX2_PANEL_H_
