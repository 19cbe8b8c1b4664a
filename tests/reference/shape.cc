#include "tests/reference/shape.h"

#include <algorithm>
#include <vector>

#include "tests/reference/cast.h"
#include "tests/reference/coordinates.h"

namespace gshard::reference {
namespace {

Dims Without(const Dims& dims, absl::Span<const int> removed) {
  Dims kept;
  for (int d = 0; d < static_cast<int>(dims.size()); ++d) {
    if (std::find(removed.begin(), removed.end(), d) == removed.end()) {
      kept.push_back(dims[d]);
    }
  }
  return kept;
}

}  // namespace

Tensor ReduceSum(const Tensor& x, absl::Span<const int> dims) {
  const Dims kept = Without(x.dims(), dims);
  std::vector<double> sums(NumElements(kept), 0.0);
  for (int64_t i = 0; i < x.size(); ++i) {
    sums[Offset(Without(Coordinates(i, x.dims()), dims), kept)] += x.f32()[i];
  }
  return FromDoubles(kept, sums);
}

Tensor Broadcast(const Tensor& x, const Dims& target,
                 absl::Span<const int> new_dims) {
  Tensor out(ElementType::kFloat32, target);
  for (int64_t i = 0; i < out.size(); ++i) {
    out.f32()[i] =
        x.f32()[Offset(Without(Coordinates(i, target), new_dims), x.dims())];
  }
  return out;
}

Tensor Concat(absl::Span<const Tensor> tensors, int dim) {
  Dims dims = tensors[0].dims();
  dims[dim] = 0;
  for (const Tensor& tensor : tensors) dims[dim] += tensor.dim(dim);
  Tensor out(ElementType::kFloat32, dims);
  for (int64_t i = 0; i < out.size(); ++i) {
    Dims at = Coordinates(i, dims);
    size_t t = 0;
    for (; at[dim] >= tensors[t].dim(dim); ++t) at[dim] -= tensors[t].dim(dim);
    out.f32()[i] = tensors[t].f32()[Offset(at, tensors[t].dims())];
  }
  return out;
}

Tensor Slice(const Tensor& x, int dim, int64_t begin, int64_t end) {
  Dims dims = x.dims();
  dims[dim] = end - begin;
  Tensor out(ElementType::kFloat32, dims);
  for (int64_t i = 0; i < out.size(); ++i) {
    Dims at = Coordinates(i, dims);
    at[dim] += begin;
    out.f32()[i] = x.f32()[Offset(at, x.dims())];
  }
  return out;
}

Tensor SliceGradient(const Tensor& dy, int dim, int64_t begin, int64_t size) {
  Dims dims = dy.dims();
  dims[dim] = size;
  Tensor dx = Tensor::Zeros(ElementType::kFloat32, dims);
  for (int64_t i = 0; i < dy.size(); ++i) {
    Dims at = Coordinates(i, dy.dims());
    at[dim] += begin;
    dx.f32()[Offset(at, dims)] = dy.f32()[i];
  }
  return dx;
}

Tensor GatherRows(const Tensor& x, const Tensor& indices) {
  Dims dims = x.dims();
  dims[0] = indices.size();
  Tensor out(ElementType::kFloat32, dims);
  for (int64_t i = 0; i < out.size(); ++i) {
    Dims at = Coordinates(i, dims);
    at[0] = indices.i32()[at[0]];
    out.f32()[i] = at[0] < 0 ? 0.0f : x.f32()[Offset(at, x.dims())];
  }
  return out;
}

Tensor ScatterAddRows(const Tensor& dy, const Tensor& indices,
                      int64_t num_rows) {
  Dims dims = dy.dims();
  dims[0] = num_rows;
  std::vector<double> sums(NumElements(dims), 0.0);
  for (int64_t i = 0; i < dy.size(); ++i) {
    Dims at = Coordinates(i, dy.dims());
    at[0] = indices.i32()[at[0]];
    if (at[0] >= 0) sums[Offset(at, dims)] += dy.f32()[i];
  }
  return FromDoubles(dims, sums);
}

Tensor Transpose(const Tensor& x, absl::Span<const int> permutation) {
  Dims dims(x.dims().size());
  for (size_t d = 0; d < dims.size(); ++d) dims[d] = x.dim(permutation[d]);
  Tensor out(ElementType::kFloat32, dims);
  for (int64_t i = 0; i < out.size(); ++i) {
    const Dims to = Coordinates(i, dims);
    Dims from(dims.size());
    for (size_t d = 0; d < dims.size(); ++d) from[permutation[d]] = to[d];
    out.f32()[i] = x.f32()[Offset(from, x.dims())];
  }
  return out;
}

}  // namespace gshard::reference
