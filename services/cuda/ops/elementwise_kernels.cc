// Kernels of elementwise arithmetic.

#include "services/base/status_macros.h"
#include "services/cuda/ops/kernel_call.h"
#include "services/cuda/ops/kernel_sets.h"
#include "services/graph/kernel_calls.h"

namespace gshard {
namespace {

template <cuda::Binary::Op kOp>
absl::Status BinaryKernel(KernelContext& c) {
  KernelCall call(c);
  ASSIGN_OR_RETURN(const float* const a, call.Floats(0));
  ASSIGN_OR_RETURN(const float* const b, call.Floats(1));
  ASSIGN_OR_RETURN(float* const out, call.NewFloats(0, c.operands[0].dims()));
  return call.Elements(cuda::Binary{kOp, a, b, c.operands[1].size(), out},
                       c.operands[0].size());
}

absl::Status ScaleKernel(KernelContext& c) {
  KernelCall call(c);
  ASSIGN_OR_RETURN(const float* const x, call.Floats(0));
  ASSIGN_OR_RETURN(float* const out, call.NewFloats(0, c.operands[0].dims()));
  return call.Elements(cuda::ScaleBy{x, FactorOf(c), out},
                       c.operands[0].size());
}

absl::Status ExpKernel(KernelContext& c) {
  KernelCall call(c);
  ASSIGN_OR_RETURN(const float* const x, call.Floats(0));
  ASSIGN_OR_RETURN(float* const out, call.NewFloats(0, c.operands[0].dims()));
  return call.Elements(cuda::Exponential{x, out}, c.operands[0].size());
}

absl::Status DropoutKernel(KernelContext& c) {
  KernelCall call(c);
  RETURN_IF_ERROR(call.CheckOnHost(1));
  const DropoutMask mask(
      static_cast<float>(FloatAttribute(c.attributes(), "rate")),
      DropoutKeyOf(c));
  ASSIGN_OR_RETURN(const float* const x, call.Floats(0));
  ASSIGN_OR_RETURN(float* const out, call.NewFloats(0, c.operands[0].dims()));
  return call.Elements(cuda::DropElements{x, mask, out}, c.operands[0].size());
}

absl::Status CastKernel(KernelContext& c) {
  const ElementType type = c.result_types[0].type;
  KernelCall call(c);
  ASSIGN_OR_RETURN(const Tensor* const x, call.Operand(0));
  if (x->type() == type) {
    c.results[0] = *x;
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(Tensor* const out, call.NewResult(0, x->dims()));
  return call.Launched(
      type == ElementType::kBFloat16
          ? cuda::LaunchElements(
                cuda::CastToBf16{In<float>(*x), Out<BFloat16>(*out)}, x->size(),
                call.stream())
          : cuda::LaunchElements(
                cuda::CastToFloat{In<BFloat16>(*x), Out<float>(*out)},
                x->size(), call.stream()));
}

absl::Status ReluKernel(KernelContext& c) {
  KernelCall call(c);
  ASSIGN_OR_RETURN(const Tensor* const x, call.Operand(0));
  ASSIGN_OR_RETURN(Tensor* const out, call.NewResult(0, x->dims()));
  return call.Launched(
      x->type() == ElementType::kBFloat16
          ? cuda::LaunchElements(
                cuda::ReluBf16{In<BFloat16>(*x), Out<BFloat16>(*out)},
                x->size(), call.stream())
          : cuda::LaunchElements(cuda::Relu{In<float>(*x), Out<float>(*out)},
                                 x->size(), call.stream()));
}

absl::Status ReluGradientKernel(KernelContext& c) {
  KernelCall call(c);
  ASSIGN_OR_RETURN(const Tensor* const y, call.Operand(0));
  ASSIGN_OR_RETURN(const Tensor* const dy, call.Operand(1));
  ASSIGN_OR_RETURN(Tensor* const out, call.NewResult(0, dy->dims()));
  const bool rounded = y->type() == ElementType::kBFloat16;
  return call.Launched(cuda::LaunchElements(
      cuda::ReluGradient{.y = rounded ? nullptr : In<float>(*y),
                         .rounded_y = rounded ? In<BFloat16>(*y) : nullptr,
                         .dy = In<float>(*dy),
                         .out = Out<float>(*out)},
      dy->size(), call.stream()));
}

}  // namespace

KernelSet ElementwiseKernels() {
  using Op = cuda::Binary::Op;
  return {{"add", BinaryKernel<Op::kAdd>},
          {"cast", CastKernel},
          {"divide", BinaryKernel<Op::kDivide>},
          {"dropout", DropoutKernel},
          {"exp", ExpKernel},
          {"multiply", BinaryKernel<Op::kMultiply>},
          {"relu", ReluKernel},
          {"relu_gradient", ReluGradientKernel},
          {"scale", ScaleKernel},
          {"subtract", BinaryKernel<Op::kSubtract>}};
}

}  // namespace gshard
