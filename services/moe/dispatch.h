// Dispatch and combine: moving tokens to rows ordered by expert, and the
// experts' outputs back (the two GSEC einsums of Algorithm 2, with indices in
// place of one-hot matrices).
//
// Letters: T tokens, E experts, R rows = choices that have a slot, M width. A
// row is one (token, choice); row_source[r] = 2 * token + choice. Rows are
// ordered by (expert, group, slot): expert e has the group_sizes[e] rows after
// those of lower experts, as RaggedDot expects.
//
// Everything is plain tensors, so that a graph operator or a peer can carry
// them; all inputs are validated. Pure functions; sums run in a fixed order.

#ifndef SERVICES_MOE_DISPATCH_H_
#define SERVICES_MOE_DISPATCH_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "services/tensor/tensor.h"

namespace gshard {

struct DispatchPlan {
  Tensor row_source;   // i32[R]
  Tensor group_sizes;  // i32[E]: rows per expert
};

// `expert` and `slot` are i32[T, 2] as in Routing; `group_size` is S, or 0 if
// all tokens are one group. A counting sort, O(T + E). Errors: InvalidArgument,
// also for an expert outside [0, E) or a slot outside [0, S) of a choice that
// has a slot.
absl::StatusOr<DispatchPlan> PlanDispatch(const Tensor& expert,
                                          const Tensor& slot,
                                          int64_t num_experts,
                                          int64_t group_size);

// Checks that every source i32[R] is a choice of one of the tokens. Errors:
// InvalidArgument.
absl::Status CheckRowSources(const Tensor& row_source, int64_t num_tokens);

// The row of every choice 2 * t + k, -1 if it has none. Errors:
// InvalidArgument, beginning with `what`, unless every source is a choice of
// one of the tokens and none occurs twice.
absl::StatusOr<std::vector<int32_t>> RowsOfChoices(const char* what,
                                                   const Tensor& row_source,
                                                   int64_t num_tokens);

// Rows below are float32, or bfloat16 if sent as such; sums of them are
// float32.

// x f32[T, M] -> rows [R, M] of `type`: row r is the token of row_source[r].
absl::StatusOr<Tensor> DispatchRows(const Tensor& x, const Tensor& row_source,
                                    ElementType type = ElementType::kFloat32);

// d_rows [R, M] -> dx f32[T, M]: the first choice's row plus the second's.
absl::StatusOr<Tensor> DispatchGradient(const Tensor& d_rows,
                                        const Tensor& row_source,
                                        int64_t num_tokens);

// rows [R, M], weight f32[T, 2] -> y f32[T, M]: sum over the token's rows of
// weight * row, first choice first. A token without rows is exactly 0.
absl::StatusOr<Tensor> Combine(const Tensor& rows, const Tensor& row_source,
                               const Tensor& weight);

struct CombineGradients {
  Tensor d_rows;    // [R, M], with the type of the rows
  Tensor d_weight;  // f32[T, 2]; 0 for a choice without a row
};

absl::StatusOr<CombineGradients> CombineGradient(const Tensor& dy,
                                                 const Tensor& rows,
                                                 const Tensor& row_source,
                                                 const Tensor& weight);

}  // namespace gshard

#endif  // SERVICES_MOE_DISPATCH_H_
