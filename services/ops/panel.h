// Our own matrix product kernels: for bfloat16 by the AVX512_BF16 instruction,
// which adds the products of two elements of k to a float32; and for float32
// with weights packed in advance, by AVX512 or AVX2 (avx2_panel.h), to which
// packed bfloat16 weights are widened, a part of a panel at a time, on
// processors without AVX512_BF16.
//
// Both need b in panels (panel_layout.h).
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

#include "services/ops/panel_layout.h"
#include "services/tensor/bfloat16.h"

namespace gshard {

// Depths of these float32 blocks: for b stored as [k, n], as in oneDNN's gemm,
// and for b stored as [n, k], as in oneDNN's matmul.
inline constexpr int64_t kFloat32Depth = 256;
constexpr int64_t TransposedDepth(int64_t k) { return k <= 1024 ? 512 : 1024; }

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
