// The MoE operators of the program: top2_gating, plan_dispatch, dispatch,
// combine and their gradients; renormalize_choices is in missing_experts.h.
//
// Letters: T tokens, E experts, R rows = choices that have a slot, M width.

#ifndef SERVICES_MOE_GRAPH_OPS_H_
#define SERVICES_MOE_GRAPH_OPS_H_

#include <vector>

#include "absl/strings/string_view.h"
#include "services/graph/builder.h"
#include "services/graph/op.h"
#include "services/moe/gating.h"

namespace gshard {

// Registers this room's operators and their partitioning (sharding_rules.h).
// Call before building or parsing a program that uses them; further calls have
// no effect.
void RegisterMoeOps();

// The options of a top2_gating or its gradient, which may come from the wire.
// Errors: InvalidArgument.
absl::StatusOr<GatingOptions> GatingOptionsOf(const Attributes& attributes);

// The kernel of top2_gating by Top2Gating(), or by one that does the same.
using GateFunction = std::function<absl::StatusOr<Routing>(
    const Tensor& logits, const Tensor& valid, const GatingOptions& options,
    const GatingNoise& noise)>;
Kernel GatingKernel(GateFunction gate);

// Results of GateTokens as values of the program.
struct GateValues {
  ValueId expert = kNoValue;          // i32[T, 2]
  ValueId slot = kNoValue;            // i32[T, 2]
  ValueId weight = kNoValue;          // f32[T, 2]
  ValueId kept_count = kNoValue;      // i32[E]
  ValueId overflow_count = kNoValue;  // i32[2]
  ValueId balance_loss = kNoValue;    // f32[]; only if options.losses
  ValueId z_loss = kNoValue;          // f32[]; only if options.losses
  ValueId log_sum = kNoValue;         // f32[T]; only if options.losses; 0 at
                                      // padding
};

// logits [T, E], valid i32[T], key i64[]; `salt` distinguishes layers. See
// Top2Gating in gating.h.
GateValues GateTokens(Builder& builder, ValueId logits, ValueId valid,
                      ValueId key, const GatingOptions& options, int64_t salt);

struct DispatchValues {
  ValueId row_source = kNoValue;   // i32[R]
  ValueId group_sizes = kNoValue;  // i32[E]
  ValueId rows = kNoValue;         // [R, M]
};

// x [T, M] to rows sorted by expert, of float32 or bfloat16; R is a fresh
// symbol.
DispatchValues DispatchTokens(Builder& builder, ValueId x,
                              const GateValues& gate, int64_t num_experts,
                              const GatingOptions& options,
                              ElementType type = ElementType::kFloat32);

// rows [R, M] of either type back to tokens f32[T, M].
ValueId CombineRows(Builder& builder, ValueId rows, ValueId row_source,
                    ValueId weight);

}  // namespace gshard

#endif  // SERVICES_MOE_GRAPH_OPS_H_
