// Products of int8, for serving: each column of b, the weights, is rounded to
// 255 values on a scale of its own when it is loaded, and each row of a when it
// comes. The sums of their products are int32 and exact, so that an element's
// bits depend on its row and column alone.
//
//   c[i, j] = scale of row i * scale of column j * sum over k of a[i, k] b[k,
//   j]
//
// A panel is 48 columns of b as [(k + 3) / 4][48][4], the last one may have 16
// or 32, followed by the columns' scales (f32) and by 128 times the sum of each
// column (i32): the processor's instruction (AVX512_VNNI) wants a without
// signs, and takes its elements 128 too large. Zeros stand where k or the
// columns end early. CPUs without the instruction get the same bits, slowly.
//
// Thread-safe.

#ifndef SERVICES_OPS_INT8_PANEL_H_
#define SERVICES_OPS_INT8_PANEL_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "services/tensor/tensor.h"

namespace gshard {

// The largest k whose sums int32 always holds, rounded down.
inline constexpr int64_t kMaxInt8Depth = 65536;

// Where the panel of column `column`, a multiple of 48, begins in the panels of
// a matrix with k rows: in bytes.
constexpr int64_t Int8PanelOffset(int64_t k, int64_t column) {
  return column * ((k + 3) / 4 * 4 + 8);
}

// Bytes of the panels of one matrix [k, n].
constexpr int64_t Int8MatrixBytes(int64_t k, int64_t n) {
  return Int8PanelOffset(k, (n + 15) / 16 * 16);
}

// An i8 tensor for `batch` matrices of `rows` rows in panels, contents
// undefined. REQUIRES: rows <= kMaxInt8Depth; no size is 0.
Tensor NewInt8Panels(Dims dims, int64_t batch, int64_t rows);

// Sets matrix `index` of `panels` to what `matrix`, f32, is rounded to: a
// row-major [rows, columns] or, if `transposed`, [columns, rows].
void RoundMatrix(const Tensor& matrix, int64_t index, bool transposed,
                 Tensor& panels);

// Rows [m, k] of float32, rounded. A row with an element that is not finite
// makes all of its results NaN.
class Int8Rows {
 public:
  Int8Rows(const float* rows, int64_t m, int64_t k);

  int64_t k() const { return k_; }
  int64_t stride() const { return (k_ + 3) / 4 * 4; }
  // With 128 added to each element.
  const uint8_t* row(int64_t i) const {
    return reinterpret_cast<const uint8_t*>(elements_.get()) + i * stride();
  }
  const float* scales() const {
    return reinterpret_cast<const float*>(scales_.get());
  }

 private:
  const int64_t k_;
  const std::shared_ptr<std::byte> elements_, scales_;
};

// c [m, n] = rows [first, first + m) of a times b in panels. `c_stride` is in
// elements between rows.
void MultiplyInt8(int64_t m, int64_t n, const Int8Rows& a, int64_t first,
                  const int8_t* panels, float* c, int64_t c_stride);

// The k elements of one column of a matrix in panels [k, n], as float32.
void ReadInt8Column(const int8_t* panels, int64_t k, int64_t n, int64_t column,
                    float* to);

}  // namespace gshard

#endif  // SERVICES_OPS_INT8_PANEL_H_
