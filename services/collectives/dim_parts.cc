#include "services/collectives/dim_parts.h"

#include <cstring>

#include "absl/types/span.h"
#include "services/base/check.h"

namespace gshard {

DimParts::DimParts(ElementType type, const Dims& dims, int dim, int parts)
    : part_dims_(dims) {
  CHECK(dim >= 0 && dim < static_cast<int>(dims.size()));
  CHECK(parts > 0 && dims[dim] % parts == 0);
  part_dims_[dim] /= parts;
  const absl::Span<const int64_t> span = part_dims_;
  outer_ = NumElements(span.subspan(0, dim));
  run_ = NumElements(span.subspan(dim)) * ElementSize(type);
  stride_ = run_ * parts;
}

void DimParts::Take(const std::byte* whole, int index, std::byte* part) const {
  if (run_ == 0) return;
  const std::byte* from = whole + index * run_;
  for (int64_t i = 0; i < outer_; ++i) {
    std::memcpy(part + i * run_, from + i * stride_, run_);
  }
}

void DimParts::Put(const std::byte* part, int index, std::byte* whole) const {
  if (run_ == 0) return;
  std::byte* to = whole + index * run_;
  for (int64_t i = 0; i < outer_; ++i) {
    std::memcpy(to + i * stride_, part + i * run_, run_);
  }
}

}  // namespace gshard
