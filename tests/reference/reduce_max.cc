#include "tests/reference/reduce_max.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/reference/coordinates.h"

namespace gshard::reference {
namespace {

// The element of the result, of sizes `kept`, that element `i` of x reduces to.
int64_t Group(const Tensor& x, int64_t i, absl::Span<const int> dims,
              const Dims& kept) {
  const Dims at = Coordinates(i, x.dims());
  Dims rest;
  for (int d = 0; d < x.rank(); ++d) {
    if (std::find(dims.begin(), dims.end(), d) == dims.end()) {
      rest.push_back(at[d]);
    }
  }
  return Offset(rest, kept);
}

}  // namespace

Tensor ReduceMax(const Tensor& x, absl::Span<const int> dims) {
  Dims kept;
  for (int d = 0; d < x.rank(); ++d) {
    if (std::find(dims.begin(), dims.end(), d) == dims.end()) {
      kept.push_back(x.dim(d));
    }
  }
  Tensor y(ElementType::kFloat32, kept);
  for (float& largest : y.span<float>()) {
    largest = -std::numeric_limits<float>::infinity();
  }
  for (int64_t i = 0; i < x.size(); ++i) {
    float& largest = y.f32()[Group(x, i, dims, kept)];
    const float element = x.f32()[i];
    if (std::isnan(element)) largest = element;
    if (element > largest) largest = element;
  }
  return y;
}

Tensor ReduceMaxGradient(const Tensor& x, const Tensor& y, const Tensor& dy,
                         absl::Span<const int> dims) {
  std::vector<int> equal(y.size(), 0);
  for (int64_t i = 0; i < x.size(); ++i) {
    const int64_t group = Group(x, i, dims, y.dims());
    if (x.f32()[i] == y.f32()[group]) ++equal[group];
  }
  Tensor dx = Tensor::Zeros(ElementType::kFloat32, x.dims());
  for (int64_t i = 0; i < x.size(); ++i) {
    const int64_t group = Group(x, i, dims, y.dims());
    if (x.f32()[i] != y.f32()[group]) continue;
    dx.f32()[i] = dy.f32()[group] / static_cast<float>(equal[group]);
  }
  return dx;
}

}  // namespace gshard::reference
