#include "services/ops/concat.h"

#include <cstring>

#include "services/base/check.h"

namespace gshard {
namespace {

// For dimension `dim`: the product of the sizes of the dimensions before it,
// and the bytes of one of its indices.
int64_t Outer(const Tensor& x, int dim) {
  return NumElements(absl::MakeConstSpan(x.dims()).first(dim));
}
int64_t InnerBytes(const Tensor& x, int dim) {
  return NumElements(absl::MakeConstSpan(x.dims()).subspan(dim + 1)) *
         static_cast<int64_t>(ElementSize(x.type()));
}

}  // namespace

Tensor Concat(absl::Span<const Tensor> tensors, int dim) {
  CHECK(!tensors.empty());
  const Tensor& first = tensors[0];
  CHECK(dim >= 0 && dim < first.rank());
  if (tensors.size() == 1) return first;
  Dims dims = first.dims();
  dims[dim] = 0;
  for (const Tensor& tensor : tensors) {
    CHECK(tensor.type() == first.type() && tensor.rank() == first.rank());
    for (int d = 0; d < first.rank(); ++d) {
      CHECK(d == dim || tensor.dim(d) == first.dim(d));
    }
    dims[dim] += tensor.dim(dim);
  }
  Tensor result(first.type(), dims);
  const int64_t outer = Outer(first, dim);
  const int64_t inner = InnerBytes(first, dim);
  std::byte* to = result.raw();
  for (int64_t i = 0; i < outer; ++i) {
    for (const Tensor& tensor : tensors) {
      const int64_t bytes = tensor.dim(dim) * inner;
      if (bytes == 0) continue;
      std::memcpy(to, tensor.raw() + i * bytes, bytes);
      to += bytes;
    }
  }
  return result;
}

Tensor Slice(const Tensor& x, int dim, int64_t begin, int64_t end) {
  CHECK(dim >= 0 && dim < x.rank());
  CHECK(0 <= begin && begin <= end && end <= x.dim(dim));
  if (dim == 0) return x.Rows(begin, end);
  Dims dims = x.dims();
  dims[dim] = end - begin;
  Tensor result(x.type(), dims);
  const int64_t outer = Outer(x, dim);
  const int64_t inner = InnerBytes(x, dim);
  const int64_t bytes = (end - begin) * inner;
  for (int64_t i = 0; i < outer && bytes > 0; ++i) {
    std::memcpy(result.raw() + i * bytes,
                x.raw() + (i * x.dim(dim) + begin) * inner, bytes);
  }
  return result;
}

Tensor SliceGradient(const Tensor& dy, int dim, int64_t begin, int64_t size) {
  CHECK(dim >= 0 && dim < dy.rank());
  const int64_t length = dy.dim(dim);
  CHECK(begin >= 0 && begin + length <= size);
  Dims dims = dy.dims();
  dims[dim] = size;
  Tensor dx(dy.type(), dims);
  const int64_t outer = Outer(dy, dim);
  const int64_t inner = InnerBytes(dy, dim);
  for (int64_t i = 0; i < outer; ++i) {
    std::byte* to = dx.raw() + i * size * inner;
    std::memset(to, 0, begin * inner);
    std::memcpy(to + begin * inner, dy.raw() + i * length * inner,
                length * inner);
    std::memset(to + (begin + length) * inner, 0,
                (size - begin - length) * inner);
  }
  return dx;
}

}  // namespace gshard
