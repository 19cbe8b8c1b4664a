#include "services/ops/cache.h"

#include <cstring>

#include "absl/strings/str_cat.h"

namespace gshard {

absl::Status CheckPositions(const Tensor& positions, int64_t length) {
  for (const int32_t position : positions.span<int32_t>()) {
    if (position < 0 || position >= length) {
      return absl::InvalidArgumentError(absl::StrCat(
          "positions must lie in [0, ", length, "), got ", position));
    }
  }
  return absl::OkStatus();
}

Tensor UpdateCache(Tensor cache, const Tensor& entry,
                   const Tensor& positions) {
  Tensor updated = cache.unique() ? std::move(cache) : cache.Clone();
  const int64_t length = updated.dim(1);
  const int64_t width = updated.dim(2) * updated.dim(3);
  for (int64_t b = 0; b < updated.dim(0); ++b) {
    std::memcpy(updated.f32() + (b * length + positions.i32()[b]) * width,
                entry.f32() + b * width, width * sizeof(float));
  }
  return updated;
}

}  // namespace gshard
