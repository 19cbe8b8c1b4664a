// The arithmetic of one Adam step (services/train/optimizer.h). CUDA kernels
// call it, too.

#ifndef SERVICES_OPS_ADAM_STEP_H_
#define SERVICES_OPS_ADAM_STEP_H_

#include <cmath>

namespace gshard {

struct AdamStep {
  float gradient_scale;
  float beta1;
  float keep1;  // 1 - beta1
  float beta2;
  float keep2;         // 1 - beta2
  float rate;          // learning rate / (1 - beta1^t)
  float inverse_root;  // 1 / sqrt(1 - beta2^t)
  float epsilon;
  float keep;  // 1 - learning rate * weight decay

  // Updates one weight and its two moments.
  constexpr void Update(float gradient, float& weight, float& first,
                        float& second) const {
    const float g = gradient * gradient_scale;
    first = beta1 * first + keep1 * g;
    second = beta2 * second + keep2 * (g * g);
    weight = keep * weight -
             rate * first / (std::sqrt(second) * inverse_root + epsilon);
  }
};

}  // namespace gshard

#endif  // SERVICES_OPS_ADAM_STEP_H_
