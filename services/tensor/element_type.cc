#include "services/tensor/element_type.h"

#include "absl/strings/str_cat.h"
#include "services/base/check.h"

namespace gshard {

size_t ElementSize(ElementType type) {
  switch (type) {
    case ElementType::kFloat32:
    case ElementType::kInt32:
      return 4;
    case ElementType::kInt64:
    case ElementType::kFloat64:
      return 8;
    case ElementType::kUint8:
    case ElementType::kInt8:
      return 1;
    case ElementType::kBFloat16:
      return 2;
  }
  CHECK(false);
}

absl::string_view ElementTypeName(ElementType type) {
  switch (type) {
    case ElementType::kFloat32:
      return "f32";
    case ElementType::kInt32:
      return "i32";
    case ElementType::kInt64:
      return "i64";
    case ElementType::kFloat64:
      return "f64";
    case ElementType::kUint8:
      return "u8";
    case ElementType::kInt8:
      return "i8";
    case ElementType::kBFloat16:
      return "bf16";
  }
  CHECK(false);
}

absl::StatusOr<ElementType> ParseElementType(absl::string_view name) {
  for (const ElementType type :
       {ElementType::kFloat32, ElementType::kInt32, ElementType::kInt64,
        ElementType::kFloat64, ElementType::kUint8, ElementType::kBFloat16,
        ElementType::kInt8}) {
    if (ElementTypeName(type) == name) return type;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "element type must be f32, i32, i64, f64, u8, bf16 or i8, got '", name,
      "'"));
}

}  // namespace gshard
