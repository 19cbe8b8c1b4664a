// Name, type and shape of a stored tensor.

#ifndef SERVICES_CHECKPOINT_TENSOR_SPEC_H_
#define SERVICES_CHECKPOINT_TENSOR_SPEC_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "services/tensor/element_type.h"
#include "services/tensor/tensor.h"

namespace gshard {

struct TensorSpec {
  std::string name;
  ElementType type = ElementType::kFloat32;
  Dims dims;
};

struct NamedTensor {
  std::string name;
  Tensor tensor;
};

constexpr size_t kMaxTensorNameBytes = 512;
constexpr size_t kMaxTensorRank = 8;

// Bytes of the elements. Errors: InvalidArgument if a size is negative, the
// rank is above kMaxTensorRank, or the product exceeds 2^60.
absl::StatusOr<uint64_t> TensorBytes(ElementType type,
                                     absl::Span<const int64_t> dims);

// A name is 1 to kMaxTensorNameBytes bytes of UTF-8 without control characters,
// other than "__metadata__", which safetensors reserves. Errors:
// InvalidArgument.
absl::Status CheckTensorName(absl::string_view name);

// "f32[2, 3]".
std::string TypeString(ElementType type, absl::Span<const int64_t> dims);

}  // namespace gshard

#endif  // SERVICES_CHECKPOINT_TENSOR_SPEC_H_
