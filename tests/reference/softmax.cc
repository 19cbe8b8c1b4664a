#include "tests/reference/softmax.h"

#include <algorithm>
#include <cmath>

namespace gshard::reference {

Tensor Softmax(const Tensor& x) {
  Tensor y(ElementType::kFloat32, x.dims());
  const int64_t size = x.dims().back();
  for (int64_t begin = 0; begin < x.size(); begin += size) {
    const float* row = x.f32() + begin;
    const double max = *std::max_element(row, row + size);
    double sum = 0.0;
    for (int64_t i = 0; i < size; ++i) sum += std::exp(row[i] - max);
    for (int64_t i = 0; i < size; ++i) {
      y.f32()[begin + i] = static_cast<float>(std::exp(row[i] - max) / sum);
    }
  }
  return y;
}

Tensor SoftmaxGradient(const Tensor& y, const Tensor& dy) {
  Tensor dx(ElementType::kFloat32, y.dims());
  const int64_t size = y.dims().back();
  for (int64_t begin = 0; begin < y.size(); begin += size) {
    for (int64_t i = begin; i < begin + size; ++i) {
      // dy_j / dx_i = y_j * ((i == j) - y_i).
      double sum = 0.0;
      for (int64_t j = begin; j < begin + size; ++j) {
        sum += static_cast<double>(dy.f32()[j]) * y.f32()[j] *
               ((i == j ? 1.0 : 0.0) - y.f32()[i]);
      }
      dx.f32()[i] = static_cast<float>(sum);
    }
  }
  return dx;
}

}  // namespace gshard::reference
