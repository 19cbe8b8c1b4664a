#include "services/partition/report/symbol_sizes.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "services/base/check.h"
#include "services/base/status_macros.h"
#include "services/tensor/element_type.h"

namespace gshard {
namespace {

// Separators between a symbol and the axes that split it; both have four
// characters.
constexpr absl::string_view kBy = "_by_", kOf = "_of_";

}  // namespace

int64_t SaturatingAdd(int64_t a, int64_t b) {
  int64_t sum;
  return __builtin_add_overflow(a, b, &sum)
             ? std::numeric_limits<int64_t>::max()
             : sum;
}

int64_t SaturatingMultiply(int64_t a, int64_t b) {
  int64_t product;
  return __builtin_mul_overflow(a, b, &product)
             ? std::numeric_limits<int64_t>::max()
             : product;
}

void SymbolSizes::Set(absl::string_view symbol, int64_t size) {
  CHECK(size >= 0);
  sizes_[std::string(symbol)] = size;
}

int64_t SymbolSizes::PartsAlong(absl::string_view names) const {
  for (int a = 0; a < mesh_.num_axes(); ++a) {
    const MeshAxis& axis = mesh_.axis(a);
    absl::string_view rest = names;
    if (!absl::ConsumePrefix(&rest, axis.name)) continue;
    if (rest.empty()) return axis.size == kElastic ? 0 : axis.size;
    if (!absl::ConsumePrefix(&rest, "_")) continue;
    const int64_t others = PartsAlong(rest);
    if (others > 0 && axis.size != kElastic) return axis.size * others;
  }
  return 0;
}

absl::StatusOr<int64_t> SymbolSizes::SizeOf(absl::string_view symbol) const {
  const auto found = sizes_.find(symbol);
  if (found != sizes_.end()) return found->second;
  // Axis names may contain a separator, too, so every position is tried.
  for (size_t at = symbol.size(); at-- > 0;) {
    const absl::string_view rest = symbol.substr(at);
    if (rest.substr(0, 4) != kBy && rest.substr(0, 4) != kOf) continue;
    const int64_t parts = PartsAlong(rest.substr(4));
    if (parts == 0) continue;
    ASSIGN_OR_RETURN(const int64_t whole, SizeOf(symbol.substr(0, at)));
    return whole / parts + (whole % parts != 0);
  }
  return absl::FailedPreconditionError(
      absl::StrCat("expected a size for the symbol ", symbol));
}

absl::StatusOr<int64_t> SymbolSizes::SizeOf(const Dim& dim) const {
  int64_t size = dim.coefficient();
  for (const std::string& symbol : dim.symbols()) {
    ASSIGN_OR_RETURN(const int64_t factor, SizeOf(absl::string_view(symbol)));
    size = SaturatingMultiply(size, factor);
  }
  return size;
}

absl::StatusOr<int64_t> SymbolSizes::Elements(
    absl::Span<const Dim> shape) const {
  int64_t elements = 1;
  bool is_empty = false;
  for (const Dim& dim : shape) {
    ASSIGN_OR_RETURN(const int64_t size, SizeOf(dim));
    is_empty |= size == 0;
    elements = SaturatingMultiply(elements, std::max<int64_t>(size, 1));
  }
  return is_empty ? 0 : elements;
}

absl::StatusOr<int64_t> SymbolSizes::Bytes(const ValueType& type) const {
  ASSIGN_OR_RETURN(const int64_t elements, Elements(type.shape));
  return SaturatingMultiply(elements,
                            static_cast<int64_t>(ElementSize(type.type)));
}

}  // namespace gshard
