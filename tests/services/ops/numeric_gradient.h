// Gradients by central differences, the reference for analytic ones.

#ifndef TESTS_SERVICES_OPS_NUMERIC_GRADIENT_H_
#define TESTS_SERVICES_OPS_NUMERIC_GRADIENT_H_

#include <functional>

#include "services/tensor/tensor.h"

namespace gshard {

// Gradient in x of sum(dy * f(x)). Its error is about 1e-3 of the result's
// size: `step` trades rounding in float32 for the curvature of f.
inline Tensor NumericGradient(const std::function<Tensor(const Tensor&)>& f,
                              const Tensor& x, const Tensor& dy,
                              float step = 1e-2f) {
  const auto loss = [&](const Tensor& at) {
    const Tensor y = f(at);
    CHECK(y.size() == dy.size());
    double sum = 0.0;
    for (int64_t i = 0; i < y.size(); ++i) {
      sum += static_cast<double>(y.f32()[i]) * dy.f32()[i];
    }
    return sum;
  };
  Tensor gradient(ElementType::kFloat32, x.dims());
  for (int64_t i = 0; i < x.size(); ++i) {
    Tensor up = x.Clone(), down = x.Clone();
    up.f32()[i] += step;
    down.f32()[i] -= step;
    // The actual step, after rounding.
    const double width = static_cast<double>(up.f32()[i]) - down.f32()[i];
    gradient.f32()[i] = static_cast<float>((loss(up) - loss(down)) / width);
  }
  return gradient;
}

}  // namespace gshard

#endif  // TESTS_SERVICES_OPS_NUMERIC_GRADIENT_H_
