// exp for loops that the compiler vectorises, which it cannot do with glibc's
// exp, and for CUDA kernels, with the same bits.

#ifndef SERVICES_OPS_EXP_H_
#define SERVICES_OPS_EXP_H_

#include <bit>
#include <cstdint>

namespace gshard {

// exp(x) within 2 ulp for x in [-87, 88]; 0 below -87.3, and about 2.4e38 from
// 88.3 on. NaN gives NaN.
//
// x = n ln 2 + r with |r| <= ln 2 / 2. 2^n is written into the exponent's bits;
// e^r is the polynomial of Cephes' expf.
constexpr float Exp(float x) {
  constexpr float kLowest = -87.3f;
  constexpr float kHighest = 88.3f;
  // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
  constexpr float kRound = 12582912.0f;
  float y = x < kLowest ? kLowest : x;
  y = y > kHighest ? kHighest : y;
  const float shifted = y * 1.44269504088896341f + kRound;
  const float n = shifted - kRound;
  const float r = (y - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const int32_t exponent =
      static_cast<int32_t>(
          static_cast<uint32_t>(std::bit_cast<int32_t>(shifted)) << 23) +
      0x3f800000;
  const float power = std::bit_cast<float>(exponent);
  return x < kLowest ? 0.0f : p * power;
}

}  // namespace gshard

#endif  // SERVICES_OPS_EXP_H_
