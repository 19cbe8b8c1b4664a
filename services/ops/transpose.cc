#include "services/ops/transpose.h"

#include <algorithm>
#include <cstring>

#include "services/base/check.h"

namespace gshard {
namespace {

// One dimension of the result: its size, and its strides in x and in the
// result.
struct Axis {
  int64_t size;
  int64_t from;
  int64_t to;
};

// Copies an [outer, inner] plane in tiles, so that neither side touches more
// cache lines than the first-level cache holds.
template <typename T>
void CopyPlane(const Axis& outer, const Axis& inner, const T* from, T* to) {
  constexpr int64_t kTile = 16;
  for (int64_t i0 = 0; i0 < outer.size; i0 += kTile) {
    const int64_t i1 = std::min(i0 + kTile, outer.size);
    for (int64_t j0 = 0; j0 < inner.size; j0 += kTile) {
      const int64_t j1 = std::min(j0 + kTile, inner.size);
      for (int64_t i = i0; i < i1; ++i) {
        for (int64_t j = j0; j < j1; ++j) {
          to[i * outer.to + j * inner.to] =
              from[i * outer.from + j * inner.from];
        }
      }
    }
  }
}

template <typename T>
void Copy(absl::Span<const Axis> axes, const Axis& outer, const Axis& inner,
          const T* from, T* to) {
  if (!axes.empty()) {
    for (int64_t i = 0; i < axes[0].size; ++i) {
      Copy(axes.subspan(1), outer, inner, from + i * axes[0].from,
           to + i * axes[0].to);
    }
  } else if (inner.from == 1) {
    for (int64_t i = 0; i < outer.size; ++i) {
      std::memcpy(to + i * outer.to, from + i * outer.from,
                  inner.size * sizeof(T));
    }
  } else {
    CopyPlane(outer, inner, from, to);
  }
}

}  // namespace

Tensor Transpose(const Tensor& x, absl::Span<const int> permutation) {
  const int rank = x.rank();
  CHECK(static_cast<int>(permutation.size()) == rank);
  const size_t element = ElementSize(x.type());
  CHECK(element == 2 || element == 4);

  Dims strides(rank);
  for (int64_t d = rank - 1, stride = 1; d >= 0; --d) {
    strides[d] = stride;
    stride *= x.dim(d);
  }
  Dims dims(rank);
  absl::InlinedVector<bool, 6> seen(rank, false);
  // The axes of the result; adjacent ones that are also adjacent in x are
  // merged.
  absl::InlinedVector<Axis, 6> axes;
  for (int d = 0; d < rank; ++d) {
    const int source = permutation[d];
    CHECK(source >= 0 && source < rank && !seen[source]);
    seen[source] = true;
    dims[d] = x.dim(source);
    if (dims[d] == 1) continue;
    if (!axes.empty() && axes.back().from == strides[source] * dims[d]) {
      axes.back().size *= dims[d];
      axes.back().from = strides[source];
    } else {
      axes.push_back({dims[d], strides[source], 0});
    }
  }
  if (x.size() == 0 || axes.size() <= 1) return x.Reshaped(dims);
  int64_t stride = 1;
  for (size_t d = axes.size(); d-- > 0;) {
    axes[d].to = stride;
    stride *= axes[d].size;
  }

  // The plane that is copied in tiles consists of the axis that is dense in the
  // result and the one that is dense in x.
  Tensor result(x.type(), dims);
  const Axis inner = axes.back();
  axes.pop_back();
  auto dense = std::find_if(axes.begin(), axes.end(),
                            [](const Axis& axis) { return axis.from == 1; });
  if (dense == axes.end()) dense = axes.end() - 1;
  const Axis outer = *dense;
  axes.erase(dense);
  if (element == 2) {
    Copy(absl::MakeConstSpan(axes), outer, inner,
         reinterpret_cast<const uint16_t*>(x.raw()),
         reinterpret_cast<uint16_t*>(result.raw()));
  } else {
    Copy(absl::MakeConstSpan(axes), outer, inner,
         reinterpret_cast<const uint32_t*>(x.raw()),
         reinterpret_cast<uint32_t*>(result.raw()));
  }
  return result;
}

}  // namespace gshard
