// int8 products for serving. Each column of b (the weights) is quantized to 255
// values with its own scale when it is loaded, each row of a during the call.
// Products are summed exactly, in int32, so the bits of an element depend on
// its row and column only.
//
//   c[i, j] = row scale[i] * column scale[j] * sum over k of a[i, k] b[k, j]
//
// A panel stores 48 columns of b as [(k + 3) / 4][48][4]; the last panel may
// have 16 or 32. The columns' scales follow (f32), then 128 times the sum of
// each column (i32). This last one is the correction for unsigned rows: the
// AVX512_VNNI instruction needs an unsigned a, so elements of a are stored with
// 128 added. k and the columns are padded with zeros. CPUs without the
// instruction produce the same bits: with AVX2 at some two thirds more than the
// rate of float32, without it slowly. So do GPUs, which read the same panels
// and multiply signed bytes (services/cuda/kernels/int8_product.h); a result
// that is NaN may be another NaN there.
//
// Thread-safe.

#ifndef SERVICES_OPS_INT8_PANEL_H_
#define SERVICES_OPS_INT8_PANEL_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "services/ops/int8_format.h"
#include "services/tensor/tensor.h"

namespace gshard {

// An i8 tensor for `batch` matrices with `rows` rows in panels, contents
// undefined. REQUIRES: rows <= kMaxInt8Depth; no size is 0.
Tensor NewInt8Panels(Dims dims, int64_t batch, int64_t rows);

// Quantizes `matrix`, f32, into matrix `index` of `panels`. It is a row-major
// [rows, columns] or, if `transposed`, [columns, rows].
void RoundMatrix(const Tensor& matrix, int64_t index, bool transposed,
                 Tensor& panels);

// Quantized rows of a float32 matrix [m, k]. A row with an element that is not
// finite makes all of its results NaN.
class Int8Rows {
 public:
  Int8Rows(const float* rows, int64_t m, int64_t k);

  int64_t k() const { return k_; }
  int64_t stride() const { return (k_ + 3) / 4 * 4; }
  // Elements with 128 added, as unsigned bytes.
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

// c [m, n] = rows [first, first + m) of a times b in panels. `c_stride` is the
// distance in elements between rows of c.
void MultiplyInt8(int64_t m, int64_t n, const Int8Rows& a, int64_t first,
                  const int8_t* panels, float* c, int64_t c_stride);

// Dequantizes the k elements of one column of a matrix [k, n] in panels.
void ReadInt8Column(const int8_t* panels, int64_t k, int64_t n, int64_t column,
                    float* to);

}  // namespace gshard

#endif  // SERVICES_OPS_INT8_PANEL_H_
