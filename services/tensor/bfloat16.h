// BFloat16: the upper half of a float32. The same range, 8 bits of precision
// instead of 24: a rounded number is off by at most 2^-9 of itself, 0.2%.
//
// Conversions are constexpr, so that CUDA kernels may call them.

#ifndef SERVICES_TENSOR_BFLOAT16_H_
#define SERVICES_TENSOR_BFLOAT16_H_

#include <bit>
#include <cstdint>

namespace gshard {

// For storage only: convert it to float for arithmetic.
struct BFloat16 {
  uint16_t bits = 0;

  bool operator==(const BFloat16&) const = default;
};

// Exact.
constexpr float ToFloat(BFloat16 x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16);
}

// Rounds to nearest, ties to even; values beyond the largest become infinite. A
// NaN stays a NaN, with its sign and upper bits, and is made quiet. Subnormal
// numbers are kept.
constexpr BFloat16 ToBFloat16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x40;
  const bool nan = (bits & 0x7fffffff) > 0x7f800000;
  return {static_cast<uint16_t>(nan ? quiet : rounded)};
}

}  // namespace gshard

#endif  // SERVICES_TENSOR_BFLOAT16_H_
