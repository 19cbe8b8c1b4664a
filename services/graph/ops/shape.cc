// reshape, transpose, reduce_sum, broadcast, concat, slice, slice_gradient.

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/graph/builder.h"
#include "services/graph/kernel_calls.h"
#include "services/graph/ops/dims.h"
#include "services/graph/ops/standard_ops.h"
#include "services/ops/concat.h"
#include "services/ops/reduce.h"
#include "services/ops/transpose.h"

namespace gshard {
namespace {

ResultTypes InferReshape(absl::Span<const ValueType> operands,
                         const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectOperands(operands, 1));
  RETURN_IF_ERROR(ExpectAttribute<Shape>(attributes, "shape"));
  const Shape& shape = ShapeAttribute(attributes, "shape");
  if (ShapeSize(shape) != ShapeSize(operands[0].shape)) {
    return absl::InvalidArgumentError(
        absl::StrCat("shape must have as many elements as ",
                     operands[0].ToString(), ", got ", ShapeToString(shape)));
  }
  return std::vector<ValueType>{{operands[0].type, shape}};
}

absl::Status ReshapeKernel(KernelContext& context) {
  ASSIGN_OR_RETURN(Dims dims, context.ResultDims(0));
  context.results[0] = context.Take(0).Reshaped(std::move(dims));
  return absl::OkStatus();
}

ResultTypes InferTranspose(absl::Span<const ValueType> operands,
                           const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectOperands(operands, 1));
  RETURN_IF_ERROR(
      ExpectAttribute<std::vector<int64_t>>(attributes, "permutation"));
  const std::vector<int64_t>& permutation =
      IntsAttribute(attributes, "permutation");
  const Shape& shape = operands[0].shape;
  std::vector<bool> seen(shape.size(), false);
  Shape result;
  for (const int64_t dim : permutation) {
    if (dim < 0 || dim >= static_cast<int64_t>(shape.size()) || seen[dim]) {
      break;
    }
    seen[dim] = true;
    result.push_back(shape[dim]);
  }
  if (result.size() != shape.size() || permutation.size() != shape.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'permutation' must name each dimension of ",
                     operands[0].ToString(), " once"));
  }
  return std::vector<ValueType>{{operands[0].type, std::move(result)}};
}

OperandGradients TransposeGradient(Builder& b, const Node& node,
                                   absl::Span<const ValueId> dy) {
  const std::vector<int64_t>& permutation =
      IntsAttribute(node.attributes, "permutation");
  std::vector<int64_t> inverse(permutation.size());
  for (size_t i = 0; i < permutation.size(); ++i) inverse[permutation[i]] = i;
  return std::vector<ValueId>{b.Transpose(dy[0], std::move(inverse))};
}

OperandGradients ReduceSumGradient(Builder& b, const Node& node,
                                   absl::Span<const ValueId> dy) {
  return std::vector<ValueId>{
      b.AddOne("broadcast", {dy[0]},
               {{"shape", b.type(node.inputs[0]).shape},
                {"dims", IntsAttribute(node.attributes, "dims")}})};
}

// Repeats along new dimensions: `dims` of the result `shape` are new.
ResultTypes InferBroadcast(absl::Span<const ValueType> operands,
                           const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectOperands(operands, 1));
  RETURN_IF_ERROR(ExpectFloat(operands, 0));
  RETURN_IF_ERROR(ExpectAttribute<Shape>(attributes, "shape"));
  const std::vector<ValueType> target = {
      {ElementType::kFloat32, ShapeAttribute(attributes, "shape")}};
  ASSIGN_OR_RETURN(const std::vector<ValueType> source,
                   InferReduction(target, attributes));
  if (source[0].shape != operands[0].shape) {
    return absl::InvalidArgumentError(
        absl::StrCat("'shape' without 'dims' must be the operand's, ",
                     operands[0].ToString(), ", got ", source[0].ToString()));
  }
  return target;
}

absl::Status BroadcastKernel(KernelContext& context) {
  ASSIGN_OR_RETURN(const Dims dims, context.ResultDims(0));
  context.results[0] =
      Broadcast(context.operands[0], dims,
                ToInts(IntsAttribute(context.attributes(), "dims")));
  return absl::OkStatus();
}

ResultTypes InferConcat(absl::Span<const ValueType> operands,
                        const Attributes& attributes) {
  if (operands.empty()) {
    return absl::InvalidArgumentError("expected at least 1 operand, got 0");
  }
  ValueType result = operands[0];
  ASSIGN_OR_RETURN(const int dim,
                   ExpectDim(attributes, "dim", result.shape.size()));
  Dim total = result.shape[dim];
  for (size_t i = 1; i < operands.size(); ++i) {
    Shape expected = result.shape;
    if (operands[i].shape.size() == expected.size()) {
      expected[dim] = operands[i].shape[dim];
    }
    RETURN_IF_ERROR(ExpectShape(operands, i, expected));
    if (operands[i].type != result.type || !total.is_static() ||
        !operands[i].shape[dim].is_static()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "operand ", i, " must have type and static size along dimension ",
          dim, " as ", result.ToString(), ", got ", operands[i].ToString()));
    }
    int64_t sum;
    if (__builtin_add_overflow(total.size(), operands[i].shape[dim].size(),
                               &sum)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "dimension ", dim, " of the operands together is ", "beyond 2^63"));
    }
    total = Dim(sum);
  }
  result.shape[dim] = total;
  return std::vector<ValueType>{std::move(result)};
}

OperandGradients ConcatGradient(Builder& b, const Node& node,
                                absl::Span<const ValueId> dy) {
  const int64_t dim = IntAttribute(node.attributes, "dim");
  std::vector<ValueId> parts;
  int64_t begin = 0;
  for (const ValueId input : node.inputs) {
    if (node.inputs.size() == 1) return std::vector<ValueId>{dy[0]};
    const int64_t size = b.type(input).shape[dim].size();
    parts.push_back(b.Slice(dy[0], dim, begin, begin + size));
    begin += size;
  }
  return parts;
}

// Checks 'dim', 'begin' and 'end' against a static size.
absl::Status ExpectRange(const Attributes& attributes, const ValueType& x) {
  for (const char* name : {"dim", "begin", "end"}) {
    RETURN_IF_ERROR(ExpectAttribute<int64_t>(attributes, name));
  }
  const int64_t dim = IntAttribute(attributes, "dim");
  const int64_t begin = IntAttribute(attributes, "begin");
  const int64_t end = IntAttribute(attributes, "end");
  if (dim < 0 || dim >= static_cast<int64_t>(x.shape.size()) ||
      !x.shape[dim].is_static() || begin < 0 || begin > end ||
      end > x.shape[dim].size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'begin' and 'end' must lie within a static dimension of ",
        x.ToString(), ", got [", begin, ", ", end, ") of dimension ", dim));
  }
  return absl::OkStatus();
}

ResultTypes InferSlice(absl::Span<const ValueType> operands,
                       const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectOperands(operands, 1));
  RETURN_IF_ERROR(ExpectRange(attributes, operands[0]));
  ValueType result = operands[0];
  result.shape[IntAttribute(attributes, "dim")] =
      Dim(IntAttribute(attributes, "end") - IntAttribute(attributes, "begin"));
  return std::vector<ValueType>{std::move(result)};
}

ResultTypes InferSliceGradient(absl::Span<const ValueType> operands,
                               const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectOperands(operands, 1));
  RETURN_IF_ERROR(ExpectFloat(operands, 0));
  RETURN_IF_ERROR(ExpectAttribute<int64_t>(attributes, "size"));
  ValueType result = operands[0];
  ASSIGN_OR_RETURN(const int dim,
                   ExpectDim(attributes, "dim", result.shape.size()));
  result.shape[dim] = Dim(IntAttribute(attributes, "size"));
  RETURN_IF_ERROR(ExpectRange(attributes, result));
  const std::vector<ValueType> whole = {result};
  ASSIGN_OR_RETURN(const std::vector<ValueType> part,
                   InferSlice(whole, attributes));
  RETURN_IF_ERROR(ExpectShape(operands, 0, part[0].shape));
  return whole;
}

}  // namespace

std::vector<OpDef> ShapeOps() {
  std::vector<OpDef> ops;
  ops.push_back(
      {.name = "reshape",
       .infer = InferReshape,
       .kernel = ReshapeKernel,
       .gradient = [](Builder& b, const Node& node,
                      absl::Span<const ValueId> dy) -> OperandGradients {
         return std::vector<ValueId>{
             b.Reshape(dy[0], b.type(node.inputs[0]).shape)};
       }});
  ops.push_back({.name = "transpose",
                 .infer = InferTranspose,
                 .kernel = ResultOf([](KernelContext& c) {
                   return Transpose(
                       c.operands[0],
                       ToInts(IntsAttribute(c.attributes(), "permutation")));
                 }),
                 .gradient = TransposeGradient});
  ops.push_back({.name = "reduce_sum",
                 .infer = InferReduction,
                 .kernel = ResultOf([](KernelContext& c) {
                   return ReduceSum(c.operands[0], DimsOf(c));
                 }),
                 .gradient = ReduceSumGradient});
  ops.push_back(
      {.name = "broadcast",
       .infer = InferBroadcast,
       .kernel = BroadcastKernel,
       .gradient = [](Builder& b, const Node& node,
                      absl::Span<const ValueId> dy) -> OperandGradients {
         return std::vector<ValueId>{
             b.ReduceSum(dy[0], IntsAttribute(node.attributes, "dims"))};
       }});
  ops.push_back({.name = "concat",
                 .infer = InferConcat,
                 .kernel = ResultOf([](KernelContext& c) {
                   return Concat(c.operands,
                                 IntAttribute(c.attributes(), "dim"));
                 }),
                 .gradient = ConcatGradient});
  ops.push_back(
      {.name = "slice",
       .infer = InferSlice,
       .kernel = ResultOf([](KernelContext& c) {
         return Slice(c.operands[0], IntAttribute(c.attributes(), "dim"),
                      IntAttribute(c.attributes(), "begin"),
                      IntAttribute(c.attributes(), "end"));
       }),
       .gradient = [](Builder& b, const Node& node,
                      absl::Span<const ValueId> dy) -> OperandGradients {
         Attributes attributes = node.attributes;
         attributes["size"] = b.type(node.inputs[0])
                                  .shape[IntAttribute(node.attributes, "dim")]
                                  .size();
         return std::vector<ValueId>{
             b.AddOne("slice_gradient", {dy[0]}, std::move(attributes))};
       }});
  ops.push_back(
      {.name = "slice_gradient",
       .infer = InferSliceGradient,
       .kernel = ResultOf([](KernelContext& c) {
         return SliceGradient(c.operands[0],
                              IntAttribute(c.attributes(), "dim"),
                              IntAttribute(c.attributes(), "begin"),
                              IntAttribute(c.attributes(), "size"));
       }),
       .gradient = [](Builder& b, const Node& node,
                      absl::Span<const ValueId> dy) -> OperandGradients {
         return std::vector<ValueId>{
             b.Slice(dy[0], IntAttribute(node.attributes, "dim"),
                     IntAttribute(node.attributes, "begin"),
                     IntAttribute(node.attributes, "end"))};
       }});
  return ops;
}

}  // namespace gshard
