// The factors of dropout: 0 or 1 / (1 - rate).

#ifndef SERVICES_OPS_DROPOUT_MASK_H_
#define SERVICES_OPS_DROPOUT_MASK_H_

#include <cstdint>

#include "services/base/splitmix64.h"

namespace gshard {

class DropoutMask {
 public:
  constexpr DropoutMask(float rate, uint64_t key)
      : start_(SplitMix64(key)),
        threshold_(RoundedUp(rate * 0x1p24f) << 40),
        factor_(1.0f / (1.0f - rate)) {}

  // 0 if RandomUniform(key, index) < rate. The comparison is done on the
  // integer bits, which vectorises: a uniform number is the upper 24 of 64
  // bits. CUDA kernels call it, too.
  constexpr float Factor(uint64_t index) const {
    return SplitMix64(start_ + index) < threshold_ ? 0.0f : factor_;
  }

 private:
  static constexpr uint64_t RoundedUp(float x) {
    const auto below = static_cast<uint64_t>(x);
    return below + (static_cast<float>(below) < x);
  }

  uint64_t start_;
  uint64_t threshold_;
  float factor_;
};

}  // namespace gshard

#endif  // SERVICES_OPS_DROPOUT_MASK_H_
