// Kernels of cross entropy.

#include "services/base/status_macros.h"
#include "services/cuda/ops/kernel_call.h"
#include "services/cuda/ops/kernel_sets.h"
#include "services/graph/kernel_calls.h"

namespace gshard {
namespace {

absl::Status CrossEntropyKernel(KernelContext& c) {
  KernelCall call(c);
  RETURN_IF_ERROR(call.CheckOnHost(1));
  RETURN_IF_ERROR(CheckLabels(c));
  const CrossEntropyOptions options = CrossEntropyOptionsOf(c);
  const int64_t rows = c.operands[0].dim(0);
  cuda::CrossEntropyRows loss = {};
  loss.vocabulary = c.operands[0].dim(1);
  loss.smoothing = options.smoothing;
  loss.z_loss = options.z_loss;
  ASSIGN_OR_RETURN(loss.logits, call.Floats(0));
  ASSIGN_OR_RETURN(loss.labels, call.Ints(1));
  ASSIGN_OR_RETURN(loss.losses, call.Scratch<double>(rows));
  ASSIGN_OR_RETURN(float* const sum, call.NewFloats(0, {}));
  ASSIGN_OR_RETURN(loss.log_sum_exp, call.NewFloats(1, {rows}));
  RETURN_IF_ERROR(call.Rows(loss, rows));
  return call.Elements(cuda::SumOfLosses{loss.losses, rows, sum}, 1);
}

absl::Status CrossEntropyGradientKernel(KernelContext& c) {
  KernelCall call(c);
  RETURN_IF_ERROR(call.CheckOnHost(1));
  RETURN_IF_ERROR(CheckLabels(c));
  const CrossEntropyOptions options = CrossEntropyOptionsOf(c);
  cuda::CrossEntropyGradientElements gradient = {};
  gradient.vocabulary = c.operands[0].dim(1);
  gradient.smoothing = options.smoothing;
  gradient.z_loss = options.z_loss;
  ASSIGN_OR_RETURN(gradient.logits, call.Floats(0));
  ASSIGN_OR_RETURN(gradient.labels, call.Ints(1));
  ASSIGN_OR_RETURN(gradient.log_sum_exp, call.Floats(2));
  ASSIGN_OR_RETURN(gradient.dloss, call.Floats(3));
  ASSIGN_OR_RETURN(gradient.dlogits, call.NewFloats(0, c.operands[0].dims()));
  return call.Elements(gradient, c.operands[0].size());
}

}  // namespace

KernelSet LossKernels() {
  return {{"cross_entropy", CrossEntropyKernel},
          {"cross_entropy_gradient", CrossEntropyGradientKernel}};
}

}  // namespace gshard
