// Element types shared by tensors, files and the wire.

#ifndef SERVICES_TENSOR_ELEMENT_TYPE_H_
#define SERVICES_TENSOR_ELEMENT_TYPE_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "services/tensor/bfloat16.h"

namespace gshard {

// Values are those of gshard.v1.ElementType on the wire.
enum class ElementType : int32_t {
  kFloat32 = 1,
  kInt32 = 2,
  kInt64 = 3,
  kFloat64 = 4,
  kUint8 = 5,
  kBFloat16 = 6,
  kInt8 = 7,  // weights in panels only: services/ops/int8_panel.h
};

// Bytes of one element.
size_t ElementSize(ElementType type);

// Short name, as in the text form of programs: "f32", "i32", "i64", "f64",
// "u8", "bf16", "i8".
absl::string_view ElementTypeName(ElementType type);

// Errors: InvalidArgument naming the unknown name.
absl::StatusOr<ElementType> ParseElementType(absl::string_view name);

template <ElementType kType>
struct ElementTypeIs {
  static constexpr ElementType value = kType;
};
template <typename T>
struct ElementTypeOf;
template <>
struct ElementTypeOf<float> : ElementTypeIs<ElementType::kFloat32> {};
template <>
struct ElementTypeOf<int32_t> : ElementTypeIs<ElementType::kInt32> {};
template <>
struct ElementTypeOf<int64_t> : ElementTypeIs<ElementType::kInt64> {};
template <>
struct ElementTypeOf<double> : ElementTypeIs<ElementType::kFloat64> {};
template <>
struct ElementTypeOf<uint8_t> : ElementTypeIs<ElementType::kUint8> {};
template <>
struct ElementTypeOf<BFloat16> : ElementTypeIs<ElementType::kBFloat16> {};
template <>
struct ElementTypeOf<int8_t> : ElementTypeIs<ElementType::kInt8> {};

}  // namespace gshard

#endif  // SERVICES_TENSOR_ELEMENT_TYPE_H_
