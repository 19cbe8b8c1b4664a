// Kernels of the gate, of dispatch and of combine, with the parts that a router
// computes on the host: slots, the plan, and the calls of segments.

#include <algorithm>
#include <vector>

#include "services/base/status_macros.h"
#include "services/cuda/ops/kernel_call.h"
#include "services/cuda/ops/kernel_sets.h"
#include "services/moe/dispatch.h"
#include "services/moe/gating.h"
#include "services/moe/graph_ops.h"

namespace gshard {
namespace {

int64_t GroupSize(const GatingOptions& options, int64_t tokens) {
  return options.group_size > 0 ? options.group_size
                                : std::max<int64_t>(tokens, 1);
}

// Reads the logits on the device, and computes the rest on the host.
absl::StatusOr<Routing> Gate(KernelContext& c, const GatingOptions& options,
                             const GatingNoise& noise) {
  KernelCall call(c);
  ASSIGN_OR_RETURN(const Tensor valid, call.HostOperand(1));
  if (options.second_expert == SecondExpertPolicy::kSampling) {
    ASSIGN_OR_RETURN(const std::vector<Tensor> logits,
                     call.ToHost({c.operands[0]}));
    return Top2Gating(logits[0], valid, options, noise);
  }
  const int64_t tokens = c.operands[0].dim(0), experts = c.operands[0].dim(1);
  ASSIGN_OR_RETURN(const float* const logits, call.Floats(0));
  GateRows rows;
  ASSIGN_OR_RETURN(rows.expert,
                   call.NewTensor(ElementType::kInt32, {tokens, 2}));
  ASSIGN_OR_RETURN(rows.logit,
                   call.NewTensor(ElementType::kFloat32, {tokens, 2}));
  ASSIGN_OR_RETURN(rows.sum, call.NewTensor(ElementType::kFloat32, {tokens}));
  const bool softmax = NeedsSoftmax(options);
  RETURN_IF_ERROR(
      call.Rows(cuda::TopTwo{logits, experts, Out<int32_t>(rows.expert),
                             Out<float>(rows.logit),
                             softmax ? Out<float>(rows.sum) : nullptr},
                tokens));
  const int64_t group_size = GroupSize(options, tokens);
  const int64_t groups =
      options.losses ? cuda::BlocksAlong(tokens, group_size) : 0;
  ASSIGN_OR_RETURN(rows.probability_sum,
                   call.NewTensor(ElementType::kFloat32, {groups, experts}));
  ASSIGN_OR_RETURN(const int32_t* const valid_there, call.Ints(1));
  RETURN_IF_ERROR(call.Elements(
      cuda::ProbabilitySums{logits, valid_there, In<float>(rows.logit),
                            In<float>(rows.sum), tokens, group_size, experts,
                            Out<float>(rows.probability_sum)},
      groups * experts));
  ASSIGN_OR_RETURN(
      std::vector<Tensor> host,
      call.ToHost({rows.expert, rows.logit, rows.sum, rows.probability_sum}));
  return Top2GatingOfRows(GateRows{host[0], host[1], host[2], host[3]}, experts,
                          valid, options, noise);
}

absl::Status GateKernel(KernelContext& c) {
  for (int i = 2; i < std::ssize(c.operands); ++i) {
    RETURN_IF_ERROR(KernelCall(c).CheckOnHost(i));
  }
  return GatingKernel(
      [&c](const Tensor&, const Tensor&, const GatingOptions& options,
           const GatingNoise& noise) { return Gate(c, options, noise); })(c);
}

absl::Status GateGradientKernel(KernelContext& c) {
  KernelCall call(c);
  ASSIGN_OR_RETURN(const GatingOptions options,
                   GatingOptionsOf(c.attributes()));
  const int64_t tokens = c.operands[0].dim(0), experts = c.operands[0].dim(1);
  ASSIGN_OR_RETURN(const Tensor expert, call.HostOperand(1));
  RETURN_IF_ERROR(CheckExperts(expert, experts));
  cuda::GateGradient gradient = {};
  gradient.group_size = GroupSize(options, tokens);
  gradient.experts = experts;
  gradient.losses = options.losses;
  gradient.never_normalized = options.normalize == Normalize::kNever;
  gradient.normalized_after = options.normalize == Normalize::kAfterCapacity;
  const ValidTokens valid(expert, gradient.group_size);
  RETURN_IF_ERROR(
      CheckChoiceCount(c.operands[3], std::ssize(valid.of_group), experts));
  gradient.valid_tokens = valid.tokens;
  std::vector<double> divisors;
  for (int64_t g = 0; g < std::ssize(valid.of_group); ++g) {
    divisors.push_back(valid.BalanceDivisor(g, options, experts));
  }
  ASSIGN_OR_RETURN(gradient.divisor, call.Upload(divisors));
  ASSIGN_OR_RETURN(gradient.logits, call.Floats(0));
  ASSIGN_OR_RETURN(gradient.expert, call.Ints(1));
  ASSIGN_OR_RETURN(gradient.slot, call.Ints(2));
  ASSIGN_OR_RETURN(gradient.count, call.Ints(3));
  ASSIGN_OR_RETURN(gradient.log_sum, call.Floats(4));
  ASSIGN_OR_RETURN(gradient.d_weight, call.Floats(5));
  ASSIGN_OR_RETURN(gradient.d_balance, call.Floats(6));
  ASSIGN_OR_RETURN(gradient.d_z, call.Floats(7));
  ASSIGN_OR_RETURN(gradient.d_logits, call.NewFloats(0, c.operands[0].dims()));
  return call.Rows(gradient, tokens);
}

cuda::FloatsOrRoundedOut OutOf(Tensor* rows) {
  const bool rounded = rows->type() == ElementType::kBFloat16;
  return {.floats = rounded ? nullptr : Out<float>(*rows),
          .rounded = rounded ? Out<BFloat16>(*rows) : nullptr};
}

absl::Status DispatchKernel(KernelContext& c) {
  KernelCall call(c);
  const int64_t tokens = c.operands[0].dim(0), width = c.operands[0].dim(1);
  ASSIGN_OR_RETURN(const Tensor row_source, call.HostOperand(1));
  RETURN_IF_ERROR(CheckRowSources(row_source, tokens));
  ASSIGN_OR_RETURN(const float* const x, call.Floats(0));
  ASSIGN_OR_RETURN(const int32_t* const sources, call.Ints(1));
  ASSIGN_OR_RETURN(Tensor* const rows,
                   call.NewResult(0, {row_source.size(), width}));
  return call.Elements(cuda::DispatchTokens{x, sources, width, OutOf(rows)},
                       rows->size());
}

// y [T, M] from the rows in operand 0, without weights if `weight` is null.
absl::Status SumRows(KernelContext& c, KernelCall& call, int64_t tokens,
                     const float* weight) {
  ASSIGN_OR_RETURN(const Tensor row_source, call.HostOperand(1));
  ASSIGN_OR_RETURN(const std::vector<int32_t> rows_of_choices,
                   RowsOfChoices(c.node.op->name.c_str(), row_source, tokens));
  const int64_t width = c.operands[0].dim(1);
  ASSIGN_OR_RETURN(const cuda::FloatsOrRounded rows, call.FloatsOrRounded(0));
  ASSIGN_OR_RETURN(const int32_t* const there, call.Upload(rows_of_choices));
  ASSIGN_OR_RETURN(float* const y, call.NewFloats(0, {tokens, width}));
  return call.Elements(cuda::CombineTokens{rows, there, weight, width, y},
                       tokens * width);
}

absl::Status DispatchGradientKernel(KernelContext& c) {
  KernelCall call(c);
  ASSIGN_OR_RETURN(const Dims dims, c.ResultDims(0));
  return SumRows(c, call, dims[0], nullptr);
}

absl::Status CombineKernel(KernelContext& c) {
  KernelCall call(c);
  ASSIGN_OR_RETURN(const float* const weight, call.Floats(2));
  return SumRows(c, call, c.operands[2].dim(0), weight);
}

absl::Status CombineGradientKernel(KernelContext& c) {
  KernelCall call(c);
  const int64_t tokens = c.operands[3].dim(0), width = c.operands[1].dim(1);
  ASSIGN_OR_RETURN(const Tensor row_source, call.HostOperand(2));
  RETURN_IF_ERROR(
      RowsOfChoices("combine_gradient", row_source, tokens).status());
  cuda::CombineGradientRows gradient = {};
  gradient.width = width;
  ASSIGN_OR_RETURN(gradient.dy, call.Floats(0));
  ASSIGN_OR_RETURN(gradient.rows, call.FloatsOrRounded(1));
  ASSIGN_OR_RETURN(gradient.row_source, call.Ints(2));
  ASSIGN_OR_RETURN(gradient.weight, call.Floats(3));
  ASSIGN_OR_RETURN(Tensor* const d_rows,
                   call.NewResult(0, c.operands[1].dims()));
  gradient.d_rows = OutOf(d_rows);
  ASSIGN_OR_RETURN(gradient.d_weight, call.NewFloats(1, {tokens, 2}));
  RETURN_IF_ERROR(
      call.Elements(cuda::FillZeros{gradient.d_weight}, 2 * tokens));
  return call.Rows(gradient, row_source.size());
}

}  // namespace

KernelSet MoeKernels() {
  return {{"call_segment", OnHost("call_segment")},
          {"combine", CombineKernel},
          {"combine_gradient", CombineGradientKernel},
          {"dispatch", DispatchKernel},
          {"dispatch_gradient", DispatchGradientKernel},
          {"plan_dispatch", OnHost("plan_dispatch")},
          {"renormalize_choices", OnHost("renormalize_choices")},
          {"top2_gating", GateKernel},
          {"top2_gating_gradient", GateGradientKernel}};
}

}  // namespace gshard
