// A logit with its index, in the order in which gates and beam search choose.

#ifndef SERVICES_CUDA_KERNELS_CHOICE_H_
#define SERVICES_CUDA_KERNELS_CHOICE_H_

#include <cstdint>

#include "services/cuda/kernels/rows.h"
#include "services/cuda/kernels/softmax_rows.h"

namespace gshard::cuda {

// Larger logits come first, then lower indices. A NaN comes before nothing
// else.
struct Choice {
  static constexpr int32_t kNobody = 0x7fffffff;
  float logit = kNoMaximum;
  int32_t index = kNobody;

  GSHARD_KERNEL_INLINE bool Before(const Choice& other) const {
    return logit > other.logit || (logit == other.logit && index < other.index);
  }
};

// The `choice` of lane `lane`.
GSHARD_KERNEL_INLINE Choice ShuffleChoice(const Choice& choice, int lane) {
  return {ShuffleFloat(choice.logit, lane),
          static_cast<int32_t>(Shuffle(choice.index, lane))};
}

}  // namespace gshard::cuda

#endif  // SERVICES_CUDA_KERNELS_CHOICE_H_
