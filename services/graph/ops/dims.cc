#include "services/graph/ops/dims.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/graph/op.h"

namespace gshard {

absl::StatusOr<std::vector<int>> ExpectDims(const Attributes& attributes,
                                            absl::string_view name, int rank) {
  RETURN_IF_ERROR(ExpectAttribute<std::vector<int64_t>>(attributes, name));
  std::vector<int> dims;
  for (const int64_t dim : IntsAttribute(attributes, name)) {
    if (dim < 0 || dim >= rank || (!dims.empty() && dim <= dims.back())) {
      return absl::InvalidArgumentError(absl::StrCat(
          "'", name, "' must ascend within [0, ", rank, "), got ", dim));
    }
    dims.push_back(static_cast<int>(dim));
  }
  return dims;
}

absl::StatusOr<int> ExpectDim(const Attributes& attributes,
                              absl::string_view name, int rank) {
  RETURN_IF_ERROR(ExpectAttribute<int64_t>(attributes, name));
  const int64_t dim = IntAttribute(attributes, name);
  if (dim < 0 || dim >= rank) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", name, "' must lie in [0, ", rank, "), got ", dim));
  }
  return static_cast<int>(dim);
}

ResultTypes InferReduction(absl::Span<const ValueType> operands,
                           const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectOperands(operands, 1));
  RETURN_IF_ERROR(ExpectFloat(operands, 0));
  const Shape& shape = operands[0].shape;
  ASSIGN_OR_RETURN(const std::vector<int> dims,
                   ExpectDims(attributes, "dims", shape.size()));
  return std::vector<ValueType>{
      {ElementType::kFloat32, WithoutDims(shape, dims)}};
}

std::vector<int> ToInts(const std::vector<int64_t>& dims) {
  return std::vector<int>(dims.begin(), dims.end());
}

Shape WithoutDims(const Shape& shape, absl::Span<const int> dims) {
  Shape rest;
  for (int d = 0; d < static_cast<int>(shape.size()); ++d) {
    if (!std::binary_search(dims.begin(), dims.end(), d)) {
      rest.push_back(shape[d]);
    }
  }
  return rest;
}

}  // namespace gshard
