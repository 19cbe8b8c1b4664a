#include "services/ops/reduce_max.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "services/base/check.h"
#include "services/ops/elementwise.h"
#include "services/ops/reduce.h"
#include "services/ops/simd.h"
#include "services/ops/transpose.h"

namespace gshard {
namespace {

// largest[i] = max(largest[i], x[i]), keeping NaN.
GSHARD_SIMD void MaxRow(const float* x, int64_t size, float* largest) {
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) {
    largest[i] = x[i] > largest[i] || x[i] != x[i] ? x[i] : largest[i];
  }
}

// 1 where x equals y, else 0.
Tensor Equal(const Tensor& x, const Tensor& y) {
  Tensor equal(ElementType::kFloat32, x.dims());
  for (int64_t i = 0; i < x.size(); ++i) {
    equal.f32()[i] = x.f32()[i] == y.f32()[i] ? 1.0f : 0.0f;
  }
  return equal;
}

}  // namespace

Tensor ReduceMax(const Tensor& x, absl::Span<const int> dims) {
  if (dims.empty()) return x;
  std::vector<int> permutation(dims.begin(), dims.end());
  Dims kept;
  for (int d = 0; d < x.rank(); ++d) {
    if (std::find(dims.begin(), dims.end(), d) != dims.end()) continue;
    permutation.push_back(d);
    kept.push_back(x.dim(d));
  }
  // Reduced dimensions first, so that the result is a maximum over rows.
  const Tensor rows = Transpose(x, permutation);
  Tensor largest(ElementType::kFloat32, kept);
  std::fill_n(largest.f32(), largest.size(),
              -std::numeric_limits<float>::infinity());
  for (int64_t i = 0; i < rows.size(); i += largest.size()) {
    MaxRow(rows.f32() + i, largest.size(), largest.f32());
  }
  return largest;
}

Tensor ReduceMaxGradient(const Tensor& x, const Tensor& y, const Tensor& dy,
                         absl::Span<const int> dims) {
  CHECK(y.dims() == dy.dims());
  const Tensor equal = Equal(x, Broadcast(y, x.dims(), dims));
  const Tensor share = Divide(dy, ReduceSum(equal, dims));
  // Selected, not multiplied by `equal`: if no element is equal (NaN), the
  // share is not finite and no element may get it.
  Tensor dx = Broadcast(share, x.dims(), dims);
  if (!dx.unique()) dx = dx.Clone();
  for (int64_t i = 0; i < dx.size(); ++i) {
    if (equal.f32()[i] == 0.0f) dx.f32()[i] = 0.0f;
  }
  return dx;
}

}  // namespace gshard
