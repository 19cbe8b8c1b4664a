#include "tests/reference/cast.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "services/base/check.h"

namespace gshard::reference {
namespace {

// Rounds to 8 bits of precision, or fewer at the least exponent, -126.
float Round(float x) {
  if (x == 0.0f || !std::isfinite(x)) return x;
  int exponent = 0;
  std::frexp(x, &exponent);  // |x| in [2^(exponent - 1), 2^exponent)
  const int unit = std::max(exponent - 8, -126 - 7);
  const double quotient = std::ldexp(static_cast<double>(x), -unit);
  double whole = std::floor(quotient);
  const double rest = quotient - whole;
  if (rest > 0.5 || (rest == 0.5 && std::fmod(whole, 2.0) != 0.0)) ++whole;
  const double rounded = std::ldexp(whole, unit);
  // The value after the largest, 255 * 2^120, is infinity.
  return std::copysign(std::abs(rounded) >= std::ldexp(1.0, 128)
                           ? std::numeric_limits<float>::infinity()
                           : static_cast<float>(rounded),
                       x);
}

BFloat16 Narrow(float x) {
  const float rounded = Round(x);
  uint32_t bits;
  std::memcpy(&bits, &rounded, sizeof(bits));
  if (std::isnan(x)) bits |= 1u << 22;  // quiet
  return {static_cast<uint16_t>(bits >> 16)};
}

}  // namespace

Tensor Cast(const Tensor& x, ElementType type) {
  if (x.type() == type) return x.Clone();
  Tensor out(type, x.dims());
  for (int64_t i = 0; i < x.size(); ++i) {
    if (type == ElementType::kBFloat16) {
      out.data<BFloat16>()[i] = Narrow(x.f32()[i]);
    } else {
      const uint32_t bits = static_cast<uint32_t>(x.data<BFloat16>()[i].bits)
                            << 16;
      std::memcpy(out.f32() + i, &bits, sizeof(bits));
    }
  }
  return out;
}

Tensor FromDoubles(const Dims& dims, const std::vector<double>& values) {
  Tensor tensor(ElementType::kFloat32, dims);
  for (int64_t i = 0; i < tensor.size(); ++i) {
    tensor.f32()[i] = static_cast<float>(values[i]);
  }
  return tensor;
}

}  // namespace gshard::reference
