// SymbolSizes: the sizes of a partitioned program's symbols in one step.
//
// Whole sizes are given, those of a device's parts follow from their names
// (sharding.h): with B = 64 and 8 routers, B_by_router is 8. A part has the
// maximum size on a device, ceil(size / n).
//
// Arithmetic saturates at the largest int64.

#ifndef SERVICES_PARTITION_REPORT_SYMBOL_SIZES_H_
#define SERVICES_PARTITION_REPORT_SYMBOL_SIZES_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "services/graph/dim.h"
#include "services/sharding/device_mesh.h"

namespace gshard {

// For non-negative numbers.
int64_t SaturatingAdd(int64_t a, int64_t b);
int64_t SaturatingMultiply(int64_t a, int64_t b);

class SymbolSizes {
 public:
  explicit SymbolSizes(DeviceMesh mesh) : mesh_(std::move(mesh)) {}

  // REQUIRES: size >= 0. A size set for a part overrides one derived from the
  // whole.
  void Set(absl::string_view symbol, int64_t size);

  // Errors: FailedPrecondition naming a symbol of unknown size.
  absl::StatusOr<int64_t> SizeOf(absl::string_view symbol) const;
  // Size of a dimension, and of the product of several. Same errors.
  absl::StatusOr<int64_t> SizeOf(const Dim& dim) const;
  absl::StatusOr<int64_t> Elements(absl::Span<const Dim> shape) const;
  absl::StatusOr<int64_t> Bytes(const ValueType& type) const;

 private:
  // Number of devices along the axes whose names, joined with '_', are `names`;
  // 0 if there are no such axes or one is elastic.
  int64_t PartsAlong(absl::string_view names) const;

  DeviceMesh mesh_;
  std::map<std::string, int64_t, std::less<>> sizes_;
};

}  // namespace gshard

#endif  // SERVICES_PARTITION_REPORT_SYMBOL_SIZES_H_
