// The format of int8 weights, and the scales of int8 products (int8_panel.h):
// what the kernels of CPUs and of GPUs have in common, so that they have the
// same bits.

#ifndef SERVICES_OPS_INT8_FORMAT_H_
#define SERVICES_OPS_INT8_FORMAT_H_

#include <cstdint>
#include <limits>

namespace gshard {

// Columns of every panel but the last.
inline constexpr int64_t kInt8PanelColumns = 48;

// The largest k, rounded down, whose sums cannot overflow int32.
inline constexpr int64_t kMaxInt8Depth = 65536;

// The offset in bytes of the panel that begins at column `column`, a multiple
// of 48, in the panels of a matrix with k rows. A multiple of 64.
constexpr int64_t Int8PanelOffset(int64_t k, int64_t column) {
  return column * ((k + 3) / 4 * 4 + 8);
}

// Bytes of the panels of one matrix [k, n].
constexpr int64_t Int8MatrixBytes(int64_t k, int64_t n) {
  return Int8PanelOffset(k, (n + 15) / 16 * 16);
}

// Stored columns of a panel with the first of n columns.
constexpr int64_t Int8PanelWidth(int64_t n) {
  return n < kInt8PanelColumns ? (n + 15) / 16 * 16 : kInt8PanelColumns;
}

// A panel of a matrix with k rows, `width` columns wide.
template <typename Byte>
struct Int8Panel {
  constexpr Int8Panel(Byte* bytes, int64_t k, int64_t width)
      : elements(bytes),
        scales(bytes + (k + 3) / 4 * 4 * width),
        corrections(scales + width * static_cast<int64_t>(sizeof(float))) {}

  Byte* elements;     // i8
  Byte* scales;       // f32
  Byte* corrections;  // i32
};

// Factors between values and quantized values: `to` quantizes values up to the
// absolute value `largest`, `back` dequantizes. Both are 0 for zeros, as which
// rows and columns count whose elements are all next to nothing; `to` is 0 and
// `back` is NaN if `largest` is not finite.
struct Int8Scale {
  constexpr explicit Int8Scale(float largest) {
    constexpr float kLargest = 127.0f;   // largest quantized absolute value
    constexpr float kSmallest = 1e-36f;  // kLargest / kSmallest is finite
    if (!(largest <= std::numeric_limits<float>::max())) {
      back = std::numeric_limits<float>::quiet_NaN();
    } else if (largest >= kSmallest) {
      to = kLargest / largest;
      back = largest / kLargest;
    }
  }
  float to = 0.0f, back = 0.0f;
};

}  // namespace gshard

#endif  // SERVICES_OPS_INT8_FORMAT_H_
