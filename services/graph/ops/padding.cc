// pad, mask_tail, reverse, dynamic_slice.

#include "services/ops/padding.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/graph/builder.h"
#include "services/graph/kernel_calls.h"
#include "services/graph/ops/dims.h"
#include "services/graph/ops/standard_ops.h"
#include "services/ops/concat.h"
#include "services/ops/reverse.h"
#include "services/ops/window.h"

namespace gshard {
namespace {

using Ints = std::vector<int64_t>;

// The padded size of dimension `d`.
absl::StatusOr<Dim> PaddedDim(const ValueType& x, int d,
                              const Padding& padding) {
  if (padding == Padding()) return x.shape[d];
  if (!x.shape[d].is_static()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "dimension ", d, " is padded and must be static, got ", x.ToString()));
  }
  const bool within =
      padding.low >= -kMaxWindowSize && padding.low <= kMaxWindowSize &&
      padding.high >= -kMaxWindowSize && padding.high <= kMaxWindowSize &&
      padding.interior >= 0 && padding.interior < kMaxWindowStep &&
      x.shape[d].size() <= kMaxWindowSize;
  const int64_t size = within ? PaddedSize(x.shape[d].size(), padding) : -1;
  if (size < 0 || size > kMaxWindowSize) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'low', 'high' and 'interior' must leave a size for dimension ", d,
        " of ", x.ToString(), ", got ", padding.low, ", ", padding.high,
        " and ", padding.interior));
  }
  return Dim(size);
}

ResultTypes InferPad(absl::Span<const ValueType> operands,
                     const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectOperands(operands, 1));
  ValueType result = operands[0];
  for (const char* name : {"low", "high", "interior"}) {
    RETURN_IF_ERROR(ExpectAttribute<Ints>(attributes, name));
    const size_t length = IntsAttribute(attributes, name).size();
    if (length != result.shape.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", name, "' must have one entry per dimension of ",
                       operands[0].ToString(), ", got ", length));
    }
  }
  RETURN_IF_ERROR(ExpectValue(attributes, result.type));
  const std::vector<Padding> paddings = PaddingsOf(attributes);
  for (size_t d = 0; d < paddings.size(); ++d) {
    ASSIGN_OR_RETURN(result.shape[d], PaddedDim(operands[0], d, paddings[d]));
  }
  return std::vector<ValueType>{std::move(result)};
}

// Padding is cropped again, and cropped elements get zeros. Then only every
// (interior + 1)-th element of a dimension came from x: column 0 once the
// dimension is folded.
OperandGradients PadGradient(Builder& b, const Node& node,
                             absl::Span<const ValueId> dy) {
  const Shape x = b.type(node.inputs[0]).shape;
  Ints low, high;
  const std::vector<Padding> paddings = PaddingsOf(node.attributes);
  for (size_t d = 0; d < paddings.size(); ++d) {
    const bool folds = paddings[d].interior > 0 && x[d] != Dim(0);
    low.push_back(-paddings[d].low);
    high.push_back((folds ? paddings[d].interior : 0) - paddings[d].high);
  }
  ValueId dx = b.Pad(dy[0], std::move(low), std::move(high));
  for (size_t d = 0; d < paddings.size(); ++d) {
    RETURN_IF_ERROR(b.status());
    if (paddings[d].interior == 0 || x[d] == Dim(0)) continue;
    Shape rest = b.type(dx).shape;
    rest[d] = x[d];
    Shape folded = rest;
    folded.insert(folded.begin() + d + 1, Dim(paddings[d].interior + 1));
    dx = b.Slice(b.Reshape(dx, std::move(folded)), d + 1, 0, 1);
    dx = b.Reshape(dx, std::move(rest));
  }
  return std::vector<ValueId>{dx};
}

// x, limit i64[].
ResultTypes InferMaskTail(absl::Span<const ValueType> operands,
                          const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectOperands(operands, 2));
  RETURN_IF_ERROR(ExpectIndex(operands, 1));
  RETURN_IF_ERROR(
      ExpectDim(attributes, "dim", operands[0].shape.size()).status());
  RETURN_IF_ERROR(ExpectValue(attributes, operands[0].type));
  return std::vector<ValueType>{operands[0]};
}

OperandGradients MaskTailGradient(Builder& b, const Node& node,
                                  absl::Span<const ValueId> dy) {
  Attributes attributes = node.attributes;
  attributes["value"] = 0.0;
  return std::vector<ValueId>{
      b.AddOne("mask_tail", {dy[0], node.inputs[1]}, std::move(attributes)),
      kNoValue};
}

ResultTypes InferReverse(absl::Span<const ValueType> operands,
                         const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectOperands(operands, 1));
  RETURN_IF_ERROR(
      ExpectDims(attributes, "dims", operands[0].shape.size()).status());
  return std::vector<ValueType>{operands[0]};
}

// x, start i64[].
ResultTypes InferDynamicSlice(absl::Span<const ValueType> operands,
                              const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectOperands(operands, 2));
  RETURN_IF_ERROR(ExpectIndex(operands, 1));
  ValueType result = operands[0];
  ASSIGN_OR_RETURN(const int dim,
                   ExpectDim(attributes, "dim", result.shape.size()));
  RETURN_IF_ERROR(ExpectAttribute<int64_t>(attributes, "size"));
  const int64_t size = IntAttribute(attributes, "size");
  const Dim whole = result.shape[dim];
  const int64_t most = whole.is_static() ? whole.size() : kMaxWindowSize;
  if (size < 0 || size > most) {
    return absl::InvalidArgumentError(
        absl::StrCat("'size' must lie in [0, ", most, "] for dimension ", dim,
                     " of ", operands[0].ToString(), ", got ", size));
  }
  result.shape[dim] = Dim(size);
  return std::vector<ValueType>{std::move(result)};
}

absl::Status DynamicSliceKernel(KernelContext& c) {
  const int dim = IntAttribute(c.attributes(), "dim");
  const int64_t size = IntAttribute(c.attributes(), "size");
  const int64_t start = IndexOf(c);
  const int64_t last = c.operands[0].dim(dim) - size;
  if (start < 0 || start > last) {
    return absl::OutOfRangeError(
        absl::StrCat("start of ", size, " elements of dimension ", dim, " of ",
                     c.operands[0].TypeString(), " must lie in [0, ", last,
                     "], got ", start));
  }
  c.results[0] = Slice(c.operands[0], dim, start, start + size);
  return absl::OkStatus();
}

}  // namespace

std::vector<OpDef> PaddingOps() {
  std::vector<OpDef> ops;
  ops.push_back({.name = "pad",
                 .infer = InferPad,
                 .kernel = ResultOf([](KernelContext& c) {
                   return Pad(c.operands[0], PaddingsOf(c.attributes()),
                              FloatAttribute(c.attributes(), "value"));
                 }),
                 .gradient = PadGradient});
  ops.push_back({.name = "mask_tail",
                 .infer = InferMaskTail,
                 .kernel =
                     [](KernelContext& c) {
                       const int64_t limit = IndexOf(c);
                       c.results[0] = MaskTail(
                           c.Take(0), IntAttribute(c.attributes(), "dim"),
                           limit, FloatAttribute(c.attributes(), "value"));
                       return absl::OkStatus();
                     },
                 .gradient = MaskTailGradient});
  ops.push_back(
      {.name = "reverse",
       .infer = InferReverse,
       .kernel = ResultOf(
           [](KernelContext& c) { return Reverse(c.operands[0], DimsOf(c)); }),
       .gradient = [](Builder& b, const Node& node,
                      absl::Span<const ValueId> dy) -> OperandGradients {
         return std::vector<ValueId>{
             b.Reverse(dy[0], IntsAttribute(node.attributes, "dims"))};
       }});
  ops.push_back({.name = "dynamic_slice",
                 .infer = InferDynamicSlice,
                 .kernel = DynamicSliceKernel});
  return ops;
}

}  // namespace gshard
