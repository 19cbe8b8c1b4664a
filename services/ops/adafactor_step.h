// One step of Adafactor, services/train/optimizer.h, by its numbers. Kernels of
// CUDA call it, too.

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
  double clip_threshold;
  double learning_rate;
  bool multiply_by_parameter_scale;
  bool factored;  // state R [n] and C [m]; else V [n, m]

  // The next element of R, C or V, by the sum of the squares of `count`
  // elements of the gradient, which are not scaled.
  constexpr float Moment(float before, double squares, double count) const {
    const double mean = gradient_scale * gradient_scale * squares / count;
    return static_cast<float>(decay * before +
                              (1.0 - decay) * (mean + epsilon1));
  }

  // The factors of a gradient's element that make it one of U.
  constexpr float RowFactor(double row_mean, float row) const {
    return static_cast<float>(static_cast<float>(std::sqrt(row_mean / row)) *
                              gradient_scale);
  }
  constexpr float ColumnFactor(float column) const {
    return static_cast<float>(1.0 / std::sqrt(static_cast<double>(column)));
  }
  // With V, the row's is the scale alone.
  constexpr float RowFactor() const {
    return static_cast<float>(gradient_scale);
  }
  constexpr float ElementFactor(float second) const {
    return 1.0f / std::sqrt(second);
  }

  // What U is multiplied by, by the sums of squares of U and W, which have
  // `size` elements.
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
