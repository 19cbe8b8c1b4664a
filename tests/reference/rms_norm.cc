#include "tests/reference/rms_norm.h"

#include <cmath>
#include <vector>

namespace gshard::reference {

RmsNormResult RmsNorm(const Tensor& x, const Tensor& scale, float epsilon) {
  const int64_t m = scale.size();
  Tensor y(ElementType::kFloat32, x.dims());
  Tensor inverse_rms(ElementType::kFloat32,
                     Dims(x.dims().begin(), x.dims().end() - 1));
  for (int64_t r = 0; r < inverse_rms.size(); ++r) {
    double squares = 0.0;
    for (int64_t i = 0; i < m; ++i) {
      squares += static_cast<double>(x.f32()[r * m + i]) * x.f32()[r * m + i];
    }
    const double inverse = 1.0 / std::sqrt(squares / m + epsilon);
    inverse_rms.f32()[r] = static_cast<float>(inverse);
    for (int64_t i = 0; i < m; ++i) {
      y.f32()[r * m + i] =
          static_cast<float>(x.f32()[r * m + i] * inverse * scale.f32()[i]);
    }
  }
  return {y, inverse_rms};
}

RmsNormGradients RmsNormGradient(const Tensor& x, const Tensor& scale,
                                 const Tensor& inverse_rms, const Tensor& dy) {
  const int64_t m = scale.size();
  Tensor dx(ElementType::kFloat32, x.dims());
  std::vector<double> dscale(m, 0.0);
  for (int64_t r = 0; r < inverse_rms.size(); ++r) {
    const float* row = x.f32() + r * m;
    const float* drow = dy.f32() + r * m;
    const double inverse = inverse_rms.f32()[r];
    double dot = 0.0;
    for (int64_t i = 0; i < m; ++i) {
      dscale[i] += drow[i] * inverse * row[i];
      dot += static_cast<double>(drow[i]) * scale.f32()[i] * row[i];
    }
    for (int64_t i = 0; i < m; ++i) {
      dx.f32()[r * m + i] =
          static_cast<float>(inverse * drow[i] * scale.f32()[i] -
                             row[i] * inverse * inverse * inverse * dot / m);
    }
  }
  Tensor dscale_tensor(ElementType::kFloat32, {m});
  for (int64_t i = 0; i < m; ++i) {
    dscale_tensor.f32()[i] = static_cast<float>(dscale[i]);
  }
  return {dx, dscale_tensor};
}

}  // namespace gshard::reference
