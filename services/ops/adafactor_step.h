// The arithmetic of one Adafactor step (services/train/optimizer.h). CUDA
// kernels call it, too.

#ifndef SERVICES_OPS_ADAFACTOR_STEP_H_
#define SERVICES_OPS_ADAFACTOR_STEP_H_

#include <algorithm>
#include <cmath>

namespace gshard {

struct AdafactorStep {
  double gradient_scale;
  double decay;  // b
  double epsilon1;
  double epsilon2;
  double clip_threshold;  // 0: no clipping
  double learning_rate;
  bool multiply_by_parameter_scale;
  bool factored;  // state is R [n] and C [m]; else V [n, m]

  // The updated element of R, C or V. `squares` is the sum of the squares of
  // `count` gradient elements, before scaling.
  constexpr float Moment(float before, double squares, double count) const {
    const double mean = gradient_scale * gradient_scale * squares / count;
    return static_cast<float>(decay * before +
                              (1.0 - decay) * (mean + epsilon1));
  }

  // Factors that turn an element of the gradient into one of U.
  constexpr float RowFactor(double row_mean, float row) const {
    return static_cast<float>(static_cast<float>(std::sqrt(row_mean / row)) *
                              gradient_scale);
  }
  constexpr float ColumnFactor(float column) const {
    return static_cast<float>(1.0 / std::sqrt(static_cast<double>(column)));
  }
  // With V, the row factor is only the gradient scale.
  constexpr float RowFactor() const {
    return static_cast<float>(gradient_scale);
  }
  constexpr float ElementFactor(float second) const {
    return 1.0f / std::sqrt(second);
  }

  // The factor of U in the update, from the sums of squares of U and W, which
  // have `size` elements each.
  constexpr float Rate(double update_squares, double weight_squares,
                       double size) const {
    double rate = learning_rate;
    if (multiply_by_parameter_scale) {
      rate *= std::max(epsilon2, std::sqrt(weight_squares / size));
    }
    if (clip_threshold > 0) {
      rate /= std::max(1.0, std::sqrt(update_squares / size) / clip_threshold);
    }
    return static_cast<float>(rate);
  }
};

}  // namespace gshard

#endif  // SERVICES_OPS_ADAFACTOR_STEP_H_
