#include "tests/reference/padding.h"

#include <cstring>

#include "services/ops/fill.h"
#include "tests/reference/coordinates.h"

namespace gshard::reference {
namespace {

// Copies element `from` of `x` to element `to` of `result`, of the same type.
void CopyElement(const Tensor& x, int64_t from, Tensor& result, int64_t to) {
  const size_t bytes = ElementSize(x.type());
  std::memcpy(result.raw() + to * bytes, x.raw() + from * bytes, bytes);
}

}  // namespace

Tensor Pad(const Tensor& x, absl::Span<const Padding> padding, double value) {
  Dims dims;
  for (int d = 0; d < x.rank(); ++d) {
    const Padding& p = padding[d];
    const int64_t between = x.dim(d) == 0 ? 0 : (x.dim(d) - 1) * p.interior;
    dims.push_back(p.low + x.dim(d) + between + p.high);
  }
  Tensor result(x.type(), dims);
  Fill(x.type(), value, result.raw(), result.size());
  for (int64_t i = 0; i < x.size(); ++i) {
    Dims at = Coordinates(i, x.dims());
    bool within = true;
    for (int d = 0; d < x.rank(); ++d) {
      at[d] = padding[d].low + at[d] * (padding[d].interior + 1);
      within = within && at[d] >= 0 && at[d] < dims[d];
    }
    if (within) CopyElement(x, i, result, Offset(at, dims));
  }
  return result;
}

Tensor MaskTail(const Tensor& x, int dim, int64_t limit, double value) {
  Tensor result = x.Clone();
  for (int64_t i = 0; i < x.size(); ++i) {
    if (Coordinates(i, x.dims())[dim] < limit) continue;
    Fill(x.type(), value, result.raw() + i * ElementSize(x.type()), 1);
  }
  return result;
}

Tensor Reverse(const Tensor& x, absl::Span<const int> dims) {
  Tensor result(x.type(), x.dims());
  for (int64_t i = 0; i < x.size(); ++i) {
    Dims at = Coordinates(i, x.dims());
    for (const int d : dims) at[d] = x.dim(d) - 1 - at[d];
    CopyElement(x, i, result, Offset(at, x.dims()));
  }
  return result;
}

}  // namespace gshard::reference
