#include "services/ops/padding.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "services/base/check.h"
#include "services/ops/fill.h"
#include "services/ops/reuse.h"
#include "services/ops/window.h"

namespace gshard {
namespace {

// One dimension: the elements [begin, end) of x that are kept, the offset of
// the first of them in the result, and the strides in x and in the result, all
// in bytes.
struct Axis {
  int64_t begin, end;
  int64_t to_first;
  int64_t from_stride, to_stride;
};

void Copy(absl::Span<const Axis> axes, int64_t bytes, const std::byte* from,
          std::byte* to) {
  if (axes.empty()) {
    std::memcpy(to, from, bytes);
    return;
  }
  const Axis& axis = axes[0];
  from += axis.begin * axis.from_stride;
  to += axis.to_first;
  if (axes.size() == 1 && axis.to_stride == bytes) {
    std::memcpy(to, from, (axis.end - axis.begin) * bytes);
    return;
  }
  for (int64_t i = axis.begin; i < axis.end; ++i) {
    Copy(axes.subspan(1), bytes, from, to);
    from += axis.from_stride;
    to += axis.to_stride;
  }
}

}  // namespace

int64_t PaddedSize(int64_t size, const Padding& padding) {
  return Dilated(size, padding.interior + 1) + padding.low + padding.high;
}

Tensor Pad(const Tensor& x, absl::Span<const Padding> padding, double value) {
  CHECK(static_cast<int>(padding.size()) == x.rank());
  Dims dims;
  for (int d = 0; d < x.rank(); ++d) {
    dims.push_back(PaddedSize(x.dim(d), padding[d]));
  }
  Tensor result(x.type(), dims);
  Fill(x.type(), value, result.raw(), result.size());

  absl::InlinedVector<Axis, 6> axes(x.rank());
  const int64_t element = ElementSize(x.type());
  int64_t from_stride = element, to_stride = element;
  for (int d = x.rank() - 1; d >= 0; --d) {
    const int64_t step = padding[d].interior + 1;
    const int64_t low = padding[d].low;
    // Element i goes to index low + i * step, if that is within the result.
    const int64_t begin = low >= 0 ? 0 : (-low + step - 1) / step;
    const int64_t end =
        std::min(x.dim(d), dims[d] <= low ? 0 : (dims[d] - 1 - low) / step + 1);
    if (begin >= end) return result;
    axes[d] = {begin, end, (low + begin * step) * to_stride, from_stride,
               step * to_stride};
    from_stride *= x.dim(d);
    to_stride *= dims[d];
  }
  Copy(axes, element, x.raw(), result.raw());
  return result;
}

Tensor MaskTail(Tensor x, int dim, int64_t limit, double value) {
  CHECK(dim >= 0 && dim < x.rank());
  const int64_t size = x.dim(dim);
  limit = std::clamp<int64_t>(limit, 0, size);
  if (limit == size || x.size() == 0) return x;
  Tensor result = ReuseOrAllocate(x);
  const int64_t inner =
      NumElements(absl::MakeConstSpan(x.dims()).subspan(dim + 1));
  const int64_t element = ElementSize(x.type());
  for (int64_t i = 0; i < x.size(); i += size * inner) {
    if (result.raw() != x.raw()) {
      std::memcpy(result.raw() + i * element,
                  std::as_const(x).raw() + i * element,
                  limit * inner * element);
    }
    Fill(x.type(), value, result.raw() + (i + limit * inner) * element,
         (size - limit) * inner);
  }
  return result;
}

}  // namespace gshard
