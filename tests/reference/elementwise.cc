#include "tests/reference/elementwise.h"

#include <cmath>
#include <vector>

#include "services/base/random.h"
#include "tests/reference/cast.h"

namespace gshard::reference {
namespace {

template <typename Function>
Tensor ForEach(const Tensor& like, Function function) {
  Tensor out(ElementType::kFloat32, like.dims());
  for (int64_t i = 0; i < out.size(); ++i) out.f32()[i] = function(i);
  return out;
}

}  // namespace

Tensor Add(const Tensor& a, const Tensor& b) {
  return ForEach(a,
                 [&](int64_t i) { return a.f32()[i] + b.f32()[i % b.size()]; });
}

Tensor Subtract(const Tensor& a, const Tensor& b) {
  return ForEach(a,
                 [&](int64_t i) { return a.f32()[i] - b.f32()[i % b.size()]; });
}

Tensor Divide(const Tensor& a, const Tensor& b) {
  return ForEach(a,
                 [&](int64_t i) { return a.f32()[i] / b.f32()[i % b.size()]; });
}

Tensor Exp(const Tensor& x) {
  return ForEach(x, [&](int64_t i) {
    return static_cast<float>(std::exp(static_cast<double>(x.f32()[i])));
  });
}

Tensor Multiply(const Tensor& a, const Tensor& b) {
  return ForEach(a,
                 [&](int64_t i) { return a.f32()[i] * b.f32()[i % b.size()]; });
}

Tensor Scale(const Tensor& x, float factor) {
  return ForEach(x, [&](int64_t i) { return factor * x.f32()[i]; });
}

Tensor Relu(const Tensor& x) {
  if (x.type() == ElementType::kBFloat16) {
    return reference::Cast(
        reference::Relu(reference::Cast(x, ElementType::kFloat32)), x.type());
  }
  return ForEach(x, [&](int64_t i) { return x.f32()[i] < 0 ? 0 : x.f32()[i]; });
}

Tensor ReluGradient(const Tensor& y, const Tensor& dy) {
  if (y.type() == ElementType::kBFloat16) {
    return reference::ReluGradient(reference::Cast(y, ElementType::kFloat32),
                                   dy);
  }
  return ForEach(y,
                 [&](int64_t i) { return y.f32()[i] > 0 ? dy.f32()[i] : 0; });
}

Tensor SumToSuffix(const Tensor& x, const Dims& dims) {
  std::vector<double> sums(NumElements(dims), 0.0);
  for (int64_t i = 0; i < x.size(); ++i) sums[i % sums.size()] += x.f32()[i];
  Tensor out(ElementType::kFloat32, dims);
  for (int64_t i = 0; i < out.size(); ++i) {
    out.f32()[i] = static_cast<float>(sums[i]);
  }
  return out;
}

Tensor Dropout(const Tensor& x, float rate, uint64_t key) {
  return ForEach(x, [&](int64_t i) {
    return RandomUniform(key, i) < rate ? 0.0f : x.f32()[i] / (1.0f - rate);
  });
}

}  // namespace gshard::reference
