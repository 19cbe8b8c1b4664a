// Kernels of norms.

#include "services/base/status_macros.h"
#include "services/cuda/ops/kernel_call.h"
#include "services/cuda/ops/kernel_sets.h"
#include "services/cuda/ops/row_major.h"
#include "services/graph/kernel_calls.h"

namespace gshard {
namespace {

// All sizes but the last: the rows.
Dims RowsOf(const Tensor& x) {
  Dims dims = x.dims();
  dims.pop_back();
  return dims;
}

absl::Status RmsNormKernel(KernelContext& c) {
  KernelCall call(c);
  const Tensor& x = c.operands[0];
  cuda::RmsNormRows norm = {};
  norm.width = x.dims().back();
  norm.epsilon = EpsilonOf(c);
  ASSIGN_OR_RETURN(norm.x, call.Floats(0));
  ASSIGN_OR_RETURN(norm.scale, call.Floats(1));
  ASSIGN_OR_RETURN(norm.y, call.NewFloats(0, x.dims()));
  ASSIGN_OR_RETURN(norm.inverse_rms, call.NewFloats(1, RowsOf(x)));
  return call.Rows(norm, c.results[1].size());
}

absl::Status RmsNormGradientKernel(KernelContext& c) {
  KernelCall call(c);
  const Tensor& x = c.operands[0];
  const int64_t width = x.dims().back(), rows = c.operands[2].size();
  cuda::RmsNormGradientRows gradient = {};
  gradient.width = width;
  ASSIGN_OR_RETURN(gradient.x, call.Floats(0));
  ASSIGN_OR_RETURN(gradient.scale, call.Floats(1));
  ASSIGN_OR_RETURN(gradient.inverse_rms, call.Floats(2));
  ASSIGN_OR_RETURN(gradient.dy, call.Floats(3));
  ASSIGN_OR_RETURN(gradient.dx, call.NewFloats(0, x.dims()));
  ASSIGN_OR_RETURN(gradient.dscale, call.Scratch<float>(rows * width));
  ASSIGN_OR_RETURN(float* const dscale, call.NewFloats(1, {width}));
  RETURN_IF_ERROR(call.Rows(gradient, rows));
  cuda::Strides kept, reduced;
  kept.Add(width, 1);
  reduced.Add(rows, width);
  return Reduce(call, cuda::ReduceStrided::Op::kSum, gradient.dscale, kept,
                reduced, dscale);
}

}  // namespace

KernelSet NormKernels() {
  return {{"rms_norm", RmsNormKernel},
          {"rms_norm_gradient", RmsNormGradientKernel}};
}

}  // namespace gshard
