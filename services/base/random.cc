#include "services/base/random.h"

#include <cmath>

namespace gshard {

uint64_t FoldIn(uint64_t key, absl::string_view name) {
  for (const char c : name) key = FoldIn(key, static_cast<unsigned char>(c));
  return FoldIn(key, name.size());
}

float RandomNormal(uint64_t key, uint64_t index) {
  const uint64_t bits = RandomBits(key, index);
  // 1 - u lies in (0, 1], so the logarithm is finite.
  const double u = static_cast<double>(bits >> 32) * 0x1p-32;
  const double v = static_cast<double>(bits & 0xFFFFFFFFu) * 0x1p-32;
  return static_cast<float>(std::sqrt(-2.0 * std::log(1.0 - u)) *
                            std::cos(2.0 * M_PI * v));
}

}  // namespace gshard
