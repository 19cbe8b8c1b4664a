#include "services/ops/reverse.h"

#include <algorithm>
#include <cstring>

#include "services/base/check.h"

namespace gshard {
namespace {

// A dimension: its size, the bytes of one index, and whether it is reversed.
struct Axis {
  int64_t size;
  int64_t bytes;
  bool reversed;
};

void Copy(absl::Span<const Axis> axes, const std::byte* from, std::byte* to) {
  const Axis& axis = axes[0];
  for (int64_t i = 0; i < axis.size; ++i) {
    const std::byte* source =
        from + (axis.reversed ? axis.size - 1 - i : i) * axis.bytes;
    if (axes.size() == 1) {
      std::memcpy(to, source, axis.bytes);
    } else {
      Copy(axes.subspan(1), source, to);
    }
    to += axis.bytes;
  }
}

}  // namespace

Tensor Reverse(const Tensor& x, absl::Span<const int> dims) {
  if (dims.empty() || x.size() == 0) return x;
  CHECK(dims.front() >= 0 && dims.back() < x.rank());
  // The elements within an index of the last reversed dimension are copied as
  // one block.
  absl::InlinedVector<Axis, 6> axes(dims.back() + 1);
  int64_t bytes = x.bytes();
  for (int d = 0; d <= dims.back(); ++d) {
    bytes /= x.dim(d);
    axes[d] = {x.dim(d), bytes,
               std::find(dims.begin(), dims.end(), d) != dims.end()};
  }
  Tensor result(x.type(), x.dims());
  Copy(axes, x.raw(), result.raw());
  return result;
}

}  // namespace gshard
