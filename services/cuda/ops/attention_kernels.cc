// Kernels of attention.
//
//   B  sentences    N  heads    Lq, Lk  positions    D  width of a head

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/cuda/kernels/launch_attention.h"
#include "services/cuda/ops/kernel_call.h"
#include "services/cuda/ops/kernel_sets.h"
#include "services/graph/kernel_calls.h"

namespace gshard {
namespace {

absl::Status CheckHeadWidth(int64_t width, int64_t most) {
  if (width <= most) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(
      "expected heads of a width up to ", most, " on a GPU, got ", width));
}

// Operands 0 to 3, and the dropout key as operand `key_operand`, if any.
absl::StatusOr<cuda::AttentionOperands> Operands(KernelCall& call,
                                                 KernelContext& c,
                                                 int key_operand) {
  cuda::AttentionOperands operands = {};
  cuda::AttentionMask& mask = operands.mask;
  operands.batch = c.operands[0].dim(0);
  mask.queries = c.operands[0].dim(1);
  mask.keys = c.operands[1].dim(1);
  mask.heads = c.operands[0].dim(2);
  operands.width = c.operands[0].dim(3);
  RETURN_IF_ERROR(CheckHeadWidth(operands.width, cuda::kMostHeadWidth));
  ASSIGN_OR_RETURN(const Tensor lengths, call.HostOperand(3));
  RETURN_IF_ERROR(CheckKeyLengths(lengths, mask.keys));
  if (HasDropoutKey(c.attributes())) {
    RETURN_IF_ERROR(call.CheckOnHost(key_operand));
  }
  const AttentionOptions options = AttentionOptionsOf(c, key_operand);
  ASSIGN_OR_RETURN(mask.lengths, call.Ints(3));
  mask.first_sentence = options.first_sentence;
  mask.first_head = options.first_head;
  mask.first_query = options.first_query;
  mask.all_queries =
      options.all_queries > 0 ? options.all_queries : mask.queries;
  mask.causal = options.causal;
  mask.scale = options.scale;
  mask.dropout_rate = options.dropout_rate;
  mask.dropout_key = options.dropout_key;
  ASSIGN_OR_RETURN(operands.q, call.FloatsOrRounded(0));
  ASSIGN_OR_RETURN(operands.k, call.FloatsOrRounded(1));
  ASSIGN_OR_RETURN(operands.v, call.FloatsOrRounded(2));
  return operands;
}

absl::Status AttentionKernel(KernelContext& c) {
  KernelCall call(c);
  cuda::AttentionForward forward = {};
  ASSIGN_OR_RETURN(forward.operands, Operands(call, c, /*key_operand=*/4));
  const cuda::AttentionOperands& of = forward.operands;
  ASSIGN_OR_RETURN(forward.out, call.NewFloats(0, c.operands[0].dims()));
  if (c.results.size() > 1) {
    ASSIGN_OR_RETURN(
        forward.statistics,
        call.NewFloats(1, {of.batch, of.mask.heads, of.mask.queries, 2}));
  }
  return call.Launched(cuda::LaunchAttention(forward, call.stream()));
}

absl::Status AttentionGradientKernel(KernelContext& c) {
  KernelCall call(c);
  cuda::AttentionBackward backward = {};
  ASSIGN_OR_RETURN(backward.operands, Operands(call, c, /*key_operand=*/6));
  const cuda::AttentionOperands& of = backward.operands;
  ASSIGN_OR_RETURN(backward.statistics, call.Floats(4));
  ASSIGN_OR_RETURN(backward.dout, call.Floats(5));
  ASSIGN_OR_RETURN(backward.dots, call.Scratch<float>(of.batch * of.mask.heads *
                                                      of.mask.queries));
  ASSIGN_OR_RETURN(backward.dq, call.NewFloats(0, c.operands[0].dims()));
  ASSIGN_OR_RETURN(backward.dk, call.NewFloats(1, c.operands[1].dims()));
  ASSIGN_OR_RETURN(backward.dv, call.NewFloats(2, c.operands[2].dims()));
  return call.Launched(cuda::LaunchAttentionGradient(backward, call.stream()));
}

absl::Status PagedAttentionKernel(KernelContext& c) {
  KernelCall call(c);
  const Tensor& keys = c.operands[1];
  ASSIGN_OR_RETURN(const Tensor pages, call.HostOperand(3));
  ASSIGN_OR_RETURN(const Tensor lengths, call.HostOperand(4));
  RETURN_IF_ERROR(CheckPages(pages, lengths, keys.dim(0), keys.dim(1)));
  cuda::PagedAttentionRows attention = {};
  attention.heads = keys.dim(2);
  attention.width = keys.dim(3);
  attention.positions = keys.dim(1);
  attention.most_pages = pages.dim(1);
  attention.scale = static_cast<float>(FloatAttribute(c.attributes(), "scale"));
  RETURN_IF_ERROR(
      CheckHeadWidth(attention.width, cuda::PagedAttentionRows::kMostWidth));
  ASSIGN_OR_RETURN(attention.q, call.Floats(0));
  ASSIGN_OR_RETURN(attention.keys, call.Floats(1));
  ASSIGN_OR_RETURN(attention.values, call.Floats(2));
  ASSIGN_OR_RETURN(attention.pages, call.Ints(3));
  ASSIGN_OR_RETURN(attention.lengths, call.Ints(4));
  ASSIGN_OR_RETURN(attention.out, call.NewFloats(0, c.operands[0].dims()));
  return call.Rows(attention, lengths.size() * attention.heads);
}

}  // namespace

KernelSet AttentionKernels() {
  return {
      {"attention", AttentionKernel},
      {"attention_gradient", AttentionGradientKernel},
      {"paged_attention", PagedAttentionKernel},
  };
}

}  // namespace gshard
