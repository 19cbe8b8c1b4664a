#include "services/ops/cache.h"

#include <cstring>

#include "absl/strings/str_cat.h"

namespace gshard {

absl::Status CheckSlots(const Tensor& slots, int64_t positions) {
  for (const int32_t slot : slots.span<int32_t>()) {
    if (slot < 0 || slot >= positions) {
      return absl::InvalidArgumentError(
          absl::StrCat("slots must lie in [0, ", positions, "), got ", slot));
    }
  }
  return absl::OkStatus();
}

Tensor UpdateCache(Tensor cache, const Tensor& entry, const Tensor& slots) {
  Tensor updated = cache.unique() ? std::move(cache) : cache.Clone();
  const int64_t width = updated.dim(2) * updated.dim(3);
  for (int64_t r = 0; r < entry.dim(0); ++r) {
    std::memcpy(updated.f32() + slots.i32()[r] * width, entry.f32() + r * width,
                width * sizeof(float));
  }
  return updated;
}

}  // namespace gshard
