#include "services/partition/ops/local_part_ops.h"

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/collectives/ragged_exchange.h"
#include "services/graph/ops/dims.h"
#include "services/ops/concat.h"
#include "services/ops/padding.h"
#include "services/partition/ops/part_position.h"

namespace gshard {
namespace {

// DeviceIndex(), of as many devices as the node's "parts".
absl::StatusOr<int64_t> PartIndex(const KernelContext& c) {
  ASSIGN_OR_RETURN(const int64_t index, DeviceIndex(c));
  const int64_t parts = IntAttribute(c.attributes(), "parts");
  if (index < parts) return index;
  return absl::FailedPreconditionError(
      absl::StrCat("the program is for ", parts, " devices along '",
                   StringAttribute(c.attributes(), "axes"),
                   "', the index of this one is ", index));
}

ResultTypes InferPart(absl::Span<const ValueType> operands,
                      const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectOperands(operands, 1));
  RETURN_IF_ERROR(
      ExpectDim(attributes, "dim", operands[0].shape.size()).status());
  RETURN_IF_ERROR(ExpectAttribute<std::string>(attributes, "axes"));
  RETURN_IF_ERROR(ExpectParts(attributes));
  RETURN_IF_ERROR(ExpectAttribute<Shape>(attributes, "shape"));
  return std::vector<ValueType>{
      {operands[0].type, ShapeAttribute(attributes, "shape")}};
}

absl::Status PartKernel(KernelContext& c) {
  ASSIGN_OR_RETURN(const int64_t index, PartIndex(c));
  const int dim = static_cast<int>(IntAttribute(c.attributes(), "dim"));
  const int64_t parts = IntAttribute(c.attributes(), "parts");
  const int64_t size = c.operands[0].dim(dim);
  if (size % parts != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(c.operands[0].TypeString(), " cannot be cut in ", parts,
                     " equal parts along dimension ", dim));
  }
  c.results[0] = Slice(c.operands[0], dim, index * (size / parts),
                       (index + 1) * (size / parts));
  return absl::OkStatus();
}

ResultTypes InferRowsOffset(absl::Span<const ValueType> operands,
                            const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectOperands(operands, 1));
  RETURN_IF_ERROR(ExpectAttribute<std::string>(attributes, "axes"));
  return std::vector<ValueType>{{ElementType::kInt64, {}}};
}

ResultTypes InferAddOffset(absl::Span<const ValueType> operands,
                           const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectOperands(operands, 2));
  RETURN_IF_ERROR(ExpectInt(operands, 0));
  RETURN_IF_ERROR(ExpectAttribute<int64_t>(attributes, "factor"));
  RETURN_IF_ERROR(ExpectIndex(operands, 1));
  return std::vector<ValueType>{operands[0]};
}

absl::Status AddOffsetKernel(KernelContext& c) {
  const int64_t offset =
      *c.operands[1].data<int64_t>() * IntAttribute(c.attributes(), "factor");
  Tensor sum = c.Take(0);
  if (!sum.unique()) sum = sum.Clone();
  for (int32_t& value : sum.span<int32_t>()) {
    value = static_cast<int32_t>(value + offset);
  }
  c.results[0] = std::move(sum);
  return absl::OkStatus();
}

ResultTypes InferMask(absl::Span<const ValueType> operands,
                      const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectOperands(operands, 1));
  RETURN_IF_ERROR(
      ExpectDim(attributes, "dim", operands[0].shape.size()).status());
  RETURN_IF_ERROR(ExpectAttribute<std::string>(attributes, "axes"));
  RETURN_IF_ERROR(ExpectAttribute<int64_t>(attributes, "size"));
  if (IntAttribute(attributes, "size") < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'size' must not be negative, got ", IntAttribute(attributes, "size")));
  }
  RETURN_IF_ERROR(ExpectValue(attributes, operands[0].type));
  return std::vector<ValueType>{operands[0]};
}

absl::Status MaskKernel(KernelContext& c) {
  ASSIGN_OR_RETURN(const int64_t index, DeviceIndex(c));
  const int dim = static_cast<int>(IntAttribute(c.attributes(), "dim"));
  const int64_t size = IntAttribute(c.attributes(), "size");
  const int64_t limit = size - index * c.operands[0].dim(dim);
  c.results[0] =
      MaskTail(c.Take(0), dim, limit, FloatAttribute(c.attributes(), "value"));
  return absl::OkStatus();
}

ResultTypes InferRaggedPart(absl::Span<const ValueType> operands,
                            const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectOperands(operands, 2));
  RETURN_IF_ERROR(ExpectInt(operands, 1));
  RETURN_IF_ERROR(ExpectRank(operands, 1, 1));
  RETURN_IF_ERROR(ExpectAttribute<std::string>(attributes, "axes"));
  RETURN_IF_ERROR(ExpectParts(attributes));
  RETURN_IF_ERROR(ExpectAttribute<Shape>(attributes, "rows"));
  const Shape& rows = ShapeAttribute(attributes, "rows");
  if (rows.size() != 1 || operands[0].shape.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'rows' must be one dimension, got ", ShapeToString(rows)));
  }
  ValueType result = operands[0];
  result.shape[0] = rows[0];
  return std::vector<ValueType>{std::move(result)};
}

absl::Status RaggedPartKernel(KernelContext& c) {
  ASSIGN_OR_RETURN(const int64_t index, PartIndex(c));
  const Tensor& sizes = c.operands[1];
  const int64_t experts = sizes.dim(0);
  const int64_t block = ExpertBlock(
      experts, static_cast<int>(IntAttribute(c.attributes(), "parts")));
  int64_t begin = 0, count = 0, total = 0;
  for (int64_t e = 0; e < experts; ++e) {
    const int32_t size = sizes.i32()[e];
    if (size < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("group sizes must not be negative, got ", size));
    }
    total += size;
    if (e < index * block) begin += size;
    if (e >= index * block && e < (index + 1) * block) count += size;
  }
  if (total != c.operands[0].dim(0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("group sizes must add up to the rows of ",
                     c.operands[0].TypeString(), ", got ", total));
  }
  c.results[0] = c.operands[0].Rows(begin, begin + count);
  return absl::OkStatus();
}

ResultTypes InferCheckMultiple(absl::Span<const ValueType> operands,
                               const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectOperands(operands, 1));
  RETURN_IF_ERROR(
      ExpectDim(attributes, "dim", operands[0].shape.size()).status());
  RETURN_IF_ERROR(ExpectAttribute<int64_t>(attributes, "multiple"));
  if (IntAttribute(attributes, "multiple") < 1) {
    return absl::InvalidArgumentError("'multiple' must be at least 1");
  }
  return std::vector<ValueType>{operands[0]};
}

absl::Status CheckMultipleKernel(KernelContext& c) {
  const int64_t multiple = IntAttribute(c.attributes(), "multiple");
  const int64_t size = c.operands[0].dim(IntAttribute(c.attributes(), "dim"));
  if (size % multiple != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a device's part must be a multiple of ", multiple, ", got ", size));
  }
  c.results[0] = c.Take(0);
  return absl::OkStatus();
}

}  // namespace

std::vector<OpDef> LocalPartOps() {
  return {{.name = "part", .infer = InferPart, .kernel = PartKernel},
          {.name = "rows_offset",
           .infer = InferRowsOffset,
           .kernel = [](KernelContext& c) -> absl::Status {
             ASSIGN_OR_RETURN(const int64_t index, DeviceIndex(c));
             c.results[0] = Tensor::Int64Scalar(index * c.operands[0].size());
             return absl::OkStatus();
           }},
          {.name = "add_offset",
           .infer = InferAddOffset,
           .kernel = AddOffsetKernel},
          {.name = "mask_padding", .infer = InferMask, .kernel = MaskKernel},
          {.name = "ragged_part",
           .infer = InferRaggedPart,
           .kernel = RaggedPartKernel},
          {.name = "check_multiple",
           .infer = InferCheckMultiple,
           .kernel = CheckMultipleKernel}};
}

}  // namespace gshard
