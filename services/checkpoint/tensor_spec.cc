#include "services/checkpoint/tensor_spec.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "services/base/utf8.h"

namespace gshard {

absl::StatusOr<uint64_t> TensorBytes(ElementType type,
                                     absl::Span<const int64_t> dims) {
  constexpr uint64_t kMaxBytes = uint64_t{1} << 60;
  if (dims.size() > kMaxTensorRank) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected at most ", kMaxTensorRank, " dimensions, got ", dims.size()));
  }
  // A zero makes the product 0, but every size must still be valid.
  uint64_t bytes = ElementSize(type);
  bool is_empty = false;
  for (const int64_t dim : dims) {
    if (dim < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("expected sizes >= 0, got ", DimsToString(dims)));
    }
    if (dim == 0) {
      is_empty = true;
      continue;
    }
    if (static_cast<uint64_t>(dim) > kMaxBytes / bytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          "expected at most 2^60 bytes, got shape ", DimsToString(dims)));
    }
    bytes *= dim;
  }
  return is_empty ? 0 : bytes;
}

absl::Status CheckTensorName(absl::string_view name) {
  if (name.empty() || name.size() > kMaxTensorNameBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a tensor's name must have 1 to ", kMaxTensorNameBytes,
                     " bytes, got ", name.size()));
  }
  bool has_control = false;
  for (const char c : name) {
    has_control |= static_cast<unsigned char>(c) < 0x20 || c == 0x7F;
  }
  if (has_control || !IsUtf8(name) || name == "__metadata__") {
    return absl::InvalidArgumentError(
        absl::StrCat("a tensor's name must be UTF-8 without control characters "
                     "and not __metadata__, got '",
                     absl::CHexEscape(name), "'"));
  }
  return absl::OkStatus();
}

std::string TypeString(ElementType type, absl::Span<const int64_t> dims) {
  return absl::StrCat(ElementTypeName(type), DimsToString(dims));
}

}  // namespace gshard
