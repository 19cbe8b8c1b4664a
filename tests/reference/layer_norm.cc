#include "tests/reference/layer_norm.h"

#include <cmath>
#include <vector>

namespace gshard::reference {

LayerNormResult LayerNorm(const Tensor& x, const Tensor& scale,
                          const Tensor& bias, float epsilon) {
  const int64_t m = scale.size();
  const Dims rows(x.dims().begin(), x.dims().end() - 1);
  Tensor y(ElementType::kFloat32, x.dims());
  Tensor means(ElementType::kFloat32, rows);
  Tensor inverse_stds(ElementType::kFloat32, rows);
  for (int64_t r = 0; r < means.size(); ++r) {
    const float* row = x.f32() + r * m;
    double sum = 0.0, squares = 0.0;
    for (int64_t i = 0; i < m; ++i) sum += row[i];
    const double mean = sum / m;
    for (int64_t i = 0; i < m; ++i) {
      squares += (row[i] - mean) * (row[i] - mean);
    }
    const double inverse = 1.0 / std::sqrt(squares / m + epsilon);
    means.f32()[r] = static_cast<float>(mean);
    inverse_stds.f32()[r] = static_cast<float>(inverse);
    for (int64_t i = 0; i < m; ++i) {
      y.f32()[r * m + i] = static_cast<float>(
          (row[i] - mean) * inverse * scale.f32()[i] + bias.f32()[i]);
    }
  }
  return {y, means, inverse_stds};
}

LayerNormGradients LayerNormGradient(const Tensor& x, const Tensor& scale,
                                     const Tensor& mean,
                                     const Tensor& inverse_std,
                                     const Tensor& dy) {
  const int64_t m = scale.size();
  Tensor dx(ElementType::kFloat32, x.dims());
  std::vector<double> dscale(m, 0.0), dbias(m, 0.0);
  for (int64_t r = 0; r < mean.size(); ++r) {
    const double inverse = inverse_std.f32()[r];
    std::vector<double> normalised(m), gradient(m);
    double sum = 0.0, dot = 0.0;
    for (int64_t i = 0; i < m; ++i) {
      const double drow = dy.f32()[r * m + i];
      normalised[i] = (x.f32()[r * m + i] - mean.f32()[r]) * inverse;
      gradient[i] = drow * scale.f32()[i];
      dscale[i] += drow * normalised[i];
      dbias[i] += drow;
      sum += gradient[i];
      dot += gradient[i] * normalised[i];
    }
    for (int64_t i = 0; i < m; ++i) {
      dx.f32()[r * m + i] = static_cast<float>(
          inverse * (gradient[i] - sum / m - normalised[i] * dot / m));
    }
  }
  LayerNormGradients gradients{dx, Tensor(ElementType::kFloat32, {m}),
                               Tensor(ElementType::kFloat32, {m})};
  for (int64_t i = 0; i < m; ++i) {
    gradients.dscale.f32()[i] = static_cast<float>(dscale[i]);
    gradients.dbias.f32()[i] = static_cast<float>(dbias[i]);
  }
  return gradients;
}

}  // namespace gshard::reference
