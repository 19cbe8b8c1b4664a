// Positions of elements in a part that was assembled from those of several
// devices: part_floor, part_remainder, part_limit, mask_outside, overlay.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/graph/ops/dims.h"
#include "services/ops/concat.h"
#include "services/ops/padding.h"
#include "services/partition/halo.h"
#include "services/partition/ops/part_ops.h"
#include "services/partition/ops/part_position.h"

namespace gshard {
namespace {

// Operands from `first` on are i64[].
absl::Status ExpectIndices(absl::Span<const ValueType> operands, size_t first) {
  for (size_t i = first; i < operands.size(); ++i) {
    RETURN_IF_ERROR(ExpectIndex(operands, i));
  }
  return absl::OkStatus();
}

int64_t Index(const Tensor& scalar) { return *scalar.data<int64_t>(); }

ResultTypes InferForm(absl::Span<const ValueType> operands,
                      const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectOperands(operands, 0));
  RETURN_IF_ERROR(ExpectAttribute<std::string>(attributes, "axes"));
  for (const char* name : {"multiplier", "offset", "divisor"}) {
    RETURN_IF_ERROR(ExpectAttribute<int64_t>(attributes, name));
  }
  if (IntAttribute(attributes, "divisor") < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("'divisor' must be at least 1, got ",
                     IntAttribute(attributes, "divisor")));
  }
  return std::vector<ValueType>{{ElementType::kInt64, {}}};
}

ResultTypes InferRemainder(absl::Span<const ValueType> operands,
                           const Attributes& attributes) {
  for (const char* name : {"factor", "add"}) {
    RETURN_IF_ERROR(ExpectAttribute<int64_t>(attributes, name));
  }
  return InferForm(operands, attributes);
}

absl::Status FloorKernel(KernelContext& c) {
  ASSIGN_OR_RETURN(const int64_t index, DeviceIndex(c));
  const LinearForm form = {
      .multiplier = IntAttribute(c.attributes(), "multiplier"),
      .offset = IntAttribute(c.attributes(), "offset"),
      .divisor = IntAttribute(c.attributes(), "divisor")};
  c.results[0] = Tensor::Int64Scalar(form.At(index));
  return absl::OkStatus();
}

absl::Status RemainderKernel(KernelContext& c) {
  ASSIGN_OR_RETURN(const int64_t index, DeviceIndex(c));
  const RemainderForm form = {
      .multiplier = IntAttribute(c.attributes(), "multiplier"),
      .offset = IntAttribute(c.attributes(), "offset"),
      .divisor = IntAttribute(c.attributes(), "divisor")};
  c.results[0] = Tensor::Int64Scalar(IntAttribute(c.attributes(), "factor") *
                                         form.At(index) +
                                     IntAttribute(c.attributes(), "add"));
  return absl::OkStatus();
}

// limit i64[], x.
ResultTypes InferLimit(absl::Span<const ValueType> operands,
                       const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectOperands(operands, 2));
  RETURN_IF_ERROR(ExpectIndices(operands.first(1), 0));
  RETURN_IF_ERROR(
      ExpectDim(attributes, "dim", operands[1].shape.size()).status());
  RETURN_IF_ERROR(ExpectAttribute<std::string>(attributes, "axes"));
  return std::vector<ValueType>{operands[0]};
}

absl::Status LimitKernel(KernelContext& c) {
  ASSIGN_OR_RETURN(const int64_t index, DeviceIndex(c));
  const int64_t size = c.operands[1].dim(IntAttribute(c.attributes(), "dim"));
  c.results[0] = Tensor::Int64Scalar(Index(c.operands[0]) - index * size);
  return absl::OkStatus();
}

// x, begin, end.
ResultTypes InferMaskOutside(absl::Span<const ValueType> operands,
                             const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectOperands(operands, 3));
  RETURN_IF_ERROR(ExpectIndices(operands, 1));
  RETURN_IF_ERROR(
      ExpectDim(attributes, "dim", operands[0].shape.size()).status());
  RETURN_IF_ERROR(ExpectValue(attributes, operands[0].type));
  return std::vector<ValueType>{operands[0]};
}

// under, over, begin, end.
ResultTypes InferOverlay(absl::Span<const ValueType> operands,
                         const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectOperands(operands, 4));
  RETURN_IF_ERROR(ExpectIndices(operands, 2));
  RETURN_IF_ERROR(
      ExpectDim(attributes, "dim", operands[0].shape.size()).status());
  if (operands[0] != operands[1]) {
    return absl::InvalidArgumentError(
        absl::StrCat("operand 1 must be ", operands[0].ToString(), ", got ",
                     operands[1].ToString()));
  }
  return std::vector<ValueType>{operands[0]};
}

// [begin, end) of the last two operands, within a dimension of `size`.
struct Range {
  int64_t begin;
  int64_t end;
};
Range RangeWithin(const KernelContext& c, int64_t size) {
  const size_t first = c.operands.size() - 2;
  const int64_t begin = std::clamp<int64_t>(Index(c.operands[first]), 0, size);
  return {begin, std::clamp(Index(c.operands[first + 1]), begin, size)};
}

absl::Status MaskOutsideKernel(KernelContext& c) {
  const Tensor& x = c.operands[0];
  const int dim = static_cast<int>(IntAttribute(c.attributes(), "dim"));
  const int64_t size = x.dim(dim);
  const Range range = RangeWithin(c, size);
  std::vector<Padding> padding(x.rank());
  padding[dim] = {.low = range.begin, .high = size - range.end};
  c.results[0] = Pad(Slice(x, dim, range.begin, range.end), padding,
                     FloatAttribute(c.attributes(), "value"));
  return absl::OkStatus();
}

absl::Status OverlayKernel(KernelContext& c) {
  const Tensor& under = c.operands[0];
  const int dim = static_cast<int>(IntAttribute(c.attributes(), "dim"));
  const int64_t size = under.dim(dim);
  const Range range = RangeWithin(c, size);
  const Tensor pieces[] = {Slice(under, dim, 0, range.begin),
                           Slice(c.operands[1], dim, range.begin, range.end),
                           Slice(under, dim, range.end, size)};
  c.results[0] = Concat(pieces, dim);
  return absl::OkStatus();
}

}  // namespace

std::vector<OpDef> MovedPartOps() {
  return {{.name = "part_floor", .infer = InferForm, .kernel = FloorKernel},
          {.name = "part_remainder",
           .infer = InferRemainder,
           .kernel = RemainderKernel},
          {.name = "part_limit", .infer = InferLimit, .kernel = LimitKernel},
          {.name = "mask_outside",
           .infer = InferMaskOutside,
           .kernel = MaskOutsideKernel},
          {.name = "overlay", .infer = InferOverlay, .kernel = OverlayKernel}};
}

}  // namespace gshard
