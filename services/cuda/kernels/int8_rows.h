// Quantized rows, and lookups in a quantized table, with the bits of
// services/ops/int8_panel.h.

#ifndef SERVICES_CUDA_KERNELS_INT8_ROWS_H_
#define SERVICES_CUDA_KERNELS_INT8_ROWS_H_

#include <bit>
#include <cmath>
#include <cstdint>

#include "services/cuda/kernels/int8_product.h"
#include "services/cuda/kernels/rows.h"
#include "services/ops/int8_format.h"

namespace gshard::cuda {

// Quantizes rows of x [R, k], each on a scale of its own. Those of a row that
// is not finite are zeros, and its scale is NaN.
struct RoundRows {
  const float* x;
  int64_t k;
  int8_t* out;    // R rows of Int8RowBytes(k)
  float* scales;  // [R]

  GSHARD_KERNEL_INLINE void operator()(int64_t row) const {
    const float* const from = x + row * k;
    // The bits of absolute values compare like these, NaN above all.
    uint32_t most = 0;
    for (int64_t i = Lane(); i < k; i += kWarp) {
      const uint32_t size = std::bit_cast<uint32_t>(from[i]) & 0x7fffffff;
      most = size > most ? size : most;
    }
    for (int apart = kWarp / 2; apart > 0; apart /= 2) {
      const uint32_t other = Shuffle(most, Lane() ^ apart);
      most = other > most ? other : most;
    }
    const Int8Scale scale(std::bit_cast<float>(most));
    auto* const fours =
        reinterpret_cast<uint32_t*>(out + row * Int8RowBytes(k));
    for (int64_t i = Lane(); i < Int8RowBytes(k) / 4; i += kWarp) {
      uint32_t four = 0;
      for (int j = 0; j < 4; ++j) {
        const int64_t at = 4 * i + j;
        if (at >= k || scale.to == 0.0f) continue;
        const auto rounded = static_cast<int32_t>(rintf(from[at] * scale.to));
        four |= (static_cast<uint32_t>(rounded) & 0xff) << (8 * j);
      }
      fours[i] = four;
    }
    if (Lane() == 0) scales[row] = scale.back;
  }
};

// out [N, width]: row n is row ids[n] of a table [vocabulary, width], stored as
// the columns of a matrix in panels.
struct PanelColumns {
  const int8_t* panels;
  int64_t vocabulary;
  const int32_t* ids;  // [N]
  int64_t width;
  float* out;

  GSHARD_KERNEL_INLINE void operator()(int64_t i) const {
    const int64_t id = ids[i / width], k = i % width;
    const int64_t begin = id / kInt8PanelColumns * kInt8PanelColumns;
    const int64_t columns = Int8PanelWidth(vocabulary - begin);
    const Int8Panel<const int8_t> panel(panels + Int8PanelOffset(width, begin),
                                        width, columns);
    const int64_t j = id - begin;
    out[i] = reinterpret_cast<const float*>(panel.scales)[j] *
             panel.elements[(k / 4 * columns + j) * 4 + k % 4];
  }
};

}  // namespace gshard::cuda

#endif  // SERVICES_CUDA_KERNELS_INT8_ROWS_H_
