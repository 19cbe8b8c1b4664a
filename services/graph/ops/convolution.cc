// convolution, convolution_kernel_gradient.

#include "services/ops/convolution.h"

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/graph/builder.h"
#include "services/graph/kernel_calls.h"
#include "services/graph/ops/standard_ops.h"

namespace gshard {
namespace {

// Static sizes of spatial dimensions [first, first + count).
absl::StatusOr<std::vector<int64_t>> SpatialSizes(const ValueType& type,
                                                  int first, int count) {
  std::vector<int64_t> sizes;
  for (int d = first; d < first + count; ++d) {
    if (!type.shape[d].is_static()) {
      return absl::InvalidArgumentError(
          absl::StrCat("dimension ", d, " is spatial and must be static, got ",
                       type.ToString()));
    }
    sizes.push_back(type.shape[d].size());
  }
  return sizes;
}

// Float operands 0 and 1 of the same rank, 3 or 4; returns the number of
// spatial dimensions.
absl::StatusOr<int> ExpectImages(absl::Span<const ValueType> operands) {
  RETURN_IF_ERROR(ExpectOperands(operands, 2));
  RETURN_IF_ERROR(ExpectFloat(operands, 0));
  RETURN_IF_ERROR(ExpectFloat(operands, 1));
  const int rank = operands[0].shape.size();
  if (rank != 3 && rank != 4) {
    return absl::InvalidArgumentError(
        absl::StrCat("operand 0 must have 1 or 2 spatial dimensions between "
                     "batch and channels, got ",
                     operands[0].ToString()));
  }
  RETURN_IF_ERROR(ExpectRank(operands, 1, rank));
  return rank - 2;
}

// The type of y [B, Y.., O] for x [B, X.., I] and windows of `sizes`, with the
// attributes checked.
absl::StatusOr<ValueType> ResultType(const ValueType& x, const Dim& outputs,
                                     const std::vector<int64_t>& sizes,
                                     const Attributes& attributes) {
  const int spatial = sizes.size();
  for (const WindowField& field : kWindowFields) {
    RETURN_IF_ERROR(
        ExpectAttribute<std::vector<int64_t>>(attributes, field.name));
    const size_t length = IntsAttribute(attributes, field.name).size();
    if (length != sizes.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", field.name,
                       "' must have one entry per spatial "
                       "dimension, ",
                       spatial, ", got ", length));
    }
  }
  ASSIGN_OR_RETURN(const std::vector<int64_t> bases,
                   SpatialSizes(x, 1, spatial));
  const std::vector<Window> windows = WindowsOf(sizes, attributes);
  ValueType y = x;
  for (int d = 0; d < spatial; ++d) {
    RETURN_IF_ERROR(Annotate(CheckWindow(bases[d], windows[d]),
                             absl::StrCat("spatial dimension ", d)));
    y.shape[d + 1] = Dim(WindowCount(bases[d], windows[d]));
  }
  y.shape.back() = outputs;
  return y;
}

// x [B, X.., I], kernel [K.., I, O].
ResultTypes InferConvolution(absl::Span<const ValueType> operands,
                             const Attributes& attributes) {
  ASSIGN_OR_RETURN(const int spatial, ExpectImages(operands));
  Shape kernel = operands[1].shape;
  kernel[spatial] = operands[0].shape.back();
  RETURN_IF_ERROR(ExpectShape(operands, 1, kernel));
  ASSIGN_OR_RETURN(const std::vector<int64_t> sizes,
                   SpatialSizes(operands[1], 0, spatial));
  ASSIGN_OR_RETURN(ValueType y,
                   ResultType(operands[0], kernel.back(), sizes, attributes));
  return std::vector<ValueType>{std::move(y)};
}

// x [B, X.., I], dy [B, Y.., O]; 'kernel' is K.. .
ResultTypes InferKernelGradient(absl::Span<const ValueType> operands,
                                const Attributes& attributes) {
  ASSIGN_OR_RETURN(const int spatial, ExpectImages(operands));
  RETURN_IF_ERROR(ExpectAttribute<std::vector<int64_t>>(attributes, "kernel"));
  const std::vector<int64_t>& sizes = IntsAttribute(attributes, "kernel");
  if (static_cast<int>(sizes.size()) != spatial) {
    return absl::InvalidArgumentError(
        absl::StrCat("'kernel' must have one entry per spatial dimension, ",
                     spatial, ", got ", sizes.size()));
  }
  const Dim& outputs = operands[1].shape.back();
  ASSIGN_OR_RETURN(const ValueType y,
                   ResultType(operands[0], outputs, sizes, attributes));
  RETURN_IF_ERROR(ExpectShape(operands, 1, y.shape));
  Shape kernel(sizes.begin(), sizes.end());
  kernel.push_back(operands[0].shape.back());
  kernel.push_back(outputs);
  return std::vector<ValueType>{{ElementType::kFloat32, std::move(kernel)}};
}

// Spatial sizes of x and of the windows, for a node of either operator.
struct Sizes {
  std::vector<int64_t> base;
  std::vector<int64_t> window;
};

// The gradient of x [B, base.., I] from dy and the kernel: a convolution whose
// kernel is reversed and has inputs and outputs exchanged.
ValueId InputGradient(Builder& b, ValueId dy, ValueId kernel,
                      const Sizes& sizes, const Attributes& attributes) {
  std::vector<Window> windows = WindowsOf(sizes.window, attributes);
  std::vector<int64_t> spatial, permutation;
  for (size_t d = 0; d < windows.size(); ++d) {
    windows[d] = InputGradientWindow(sizes.base[d], windows[d]);
    spatial.push_back(d);
    permutation.push_back(d);
  }
  const int64_t inputs = windows.size();
  permutation.push_back(inputs + 1);
  permutation.push_back(inputs);
  const ValueId back = b.Transpose(b.Reverse(kernel, spatial), permutation);
  return b.AddOne("convolution", {dy, back}, WindowAttributes(windows));
}

OperandGradients ConvolutionGradient(Builder& b, const Node& node,
                                     absl::Span<const ValueId> dy) {
  const ValueId x = node.inputs[0], kernel = node.inputs[1];
  const int spatial = b.type(x).shape.size() - 2;
  Sizes sizes;
  ASSIGN_OR_RETURN(sizes.base, SpatialSizes(b.type(x), 1, spatial));
  ASSIGN_OR_RETURN(sizes.window, SpatialSizes(b.type(kernel), 0, spatial));
  Attributes attributes = node.attributes;
  attributes["kernel"] = sizes.window;
  const ValueId of_x = InputGradient(b, dy[0], kernel, sizes, node.attributes);
  return std::vector<ValueId>{
      of_x, b.AddOne("convolution_kernel_gradient", {x, dy[0]}, attributes)};
}

// The gradient of a kernel is linear in x and in dy, with the convolution's own
// coefficients.
OperandGradients KernelGradientGradient(Builder& b, const Node& node,
                                        absl::Span<const ValueId> dkernel) {
  const ValueId x = node.inputs[0], dy = node.inputs[1];
  Sizes sizes;
  sizes.window = IntsAttribute(node.attributes, "kernel");
  ASSIGN_OR_RETURN(sizes.base, SpatialSizes(b.type(x), 1, sizes.window.size()));
  Attributes attributes = node.attributes;
  attributes.erase("kernel");
  const ValueId of_x = InputGradient(b, dy, dkernel[0], sizes, attributes);
  return std::vector<ValueId>{
      of_x, b.AddOne("convolution", {x, dkernel[0]}, attributes)};
}

}  // namespace

std::vector<OpDef> ConvolutionOps() {
  return {{.name = "convolution",
           .infer = InferConvolution,
           .kernel = ResultOf([](KernelContext& c) {
             return Convolution(c.operands[0], c.operands[1], WindowsOf(c));
           }),
           .gradient = ConvolutionGradient},
          {.name = "convolution_kernel_gradient",
           .infer = InferKernelGradient,
           .kernel = ResultOf([](KernelContext& c) {
             return ConvolutionKernelGradient(c.operands[0], c.operands[1],
                                              WindowsOfKernelGradient(c));
           }),
           .gradient = KernelGradientGradient}};
}

}  // namespace gshard
