// Top-2 gating: which experts a token goes to, in which slot, with what weight
// (GATE of Algorithm 1, GShard, arXiv 2006.16668).
//
// Letters: T tokens of one call, G groups, S tokens per group, E experts, C
// capacity. Tokens are divided into consecutive groups of S, which are
// independent. A shorter last group behaves as if padded to S.
//
// Defaults are the rules of the paper's authors' code:
//   - everything is float32; equal logits go to the lowest expert;
//   - the second expert is kept with probability 2 * w2 (policy kRandom);
//   - in each group and for each expert all first choices take slots before
//     any second choice, and lower tokens before higher ones;
//   - weights are normalised before the capacity check and not again after;
//   - padding takes no slot and enters no loss.
//
// tests/reference/gating.h is the same in plain loops, and tests compare the
// two. All functions are pure: same arguments, same bits.

#ifndef SERVICES_MOE_GATING_H_
#define SERVICES_MOE_GATING_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "services/config/model_config.h"
#include "services/tensor/tensor.h"

namespace gshard {

enum class Normalize {
  kBeforeCapacity,  // w1 + w2 = 1, then drop; a lone choice keeps w < 1
  kAfterCapacity,   // the kept weights are scaled to sum to 1
  kNever,           // the weights are the softmax's
};

// Priority for an expert's slots. Where probabilities decide, tokens whose
// probabilities differ only by rounding may come in either order (the same on
// the same CPU); equal ones come by token.
enum class SlotOrder {
  kToken,          // first choices by token, then second choices by token
  kBatchPriority,  // likewise, tokens by descending top probability
  kPosition,       // by token, first and second choices alike
  kProbability,    // the C most probable choices stay; slots by token
};

struct GatingOptions {
  SecondExpertPolicy second_expert = SecondExpertPolicy::kRandom;
  // kRandom keeps the second best iff uniform < w2 / threshold. w2 is the
  // normalised weight under kBeforeCapacity, else the softmax probability. 0.5
  // is the paper's rule.
  float random_threshold = 0.5f;
  Normalize normalize = Normalize::kBeforeCapacity;
  SlotOrder order = SlotOrder::kToken;
  // As in the printed Algorithm 1, a second choice rejected by kRandom uses up
  // a slot all the same. Only with kToken and kBatchPriority.
  bool literal = false;
  // False: dropless, every choice gets a slot and C is S.
  bool drop = true;
  // C = max(min_capacity, ceil(2 S / E * capacity_factor)), or `capacity` if
  // nonzero.
  double capacity_factor = 1.0;
  int64_t min_capacity = 1;
  int64_t capacity = 0;
  // S; 0 puts all tokens into one group.
  int64_t group_size = 0;
  // The balance loss counts half of each choice instead of the first choice.
  bool balance_both_choices = false;
  // False skips the losses and reports 0 for them. With kBeforeCapacity the
  // softmax is then never computed. Routing stays the same.
  bool losses = true;
};

// Noise is a function of (key, token) and (key, token, expert). The spans, if
// not empty, replace it: T uniforms in [0, 1) and T * E Gumbel numbers.
struct GatingNoise {
  uint64_t key = 0;
  absl::Span<const float> uniform = {};
  absl::Span<const float> gumbel = {};
  // Index of the first token in the batch: a device that gates a part of a
  // batch draws the same numbers as for the whole.
  int64_t first_token = 0;
};

// Choice k of token t is element [t, k].
struct Routing {
  // i32[T, 2]: the chosen experts, even if not kept; -1 for padding, and for
  // the second choice if E is 1.
  Tensor expert;
  // i32[T, 2]: slot in [0, min(C, S)), or -1: overflowed, rejected or padding.
  Tensor slot;
  // f32[T, 2]: combine weight; 0 where slot is -1.
  Tensor weight;
  // f32[]: E * sum_e f_e m_e, mean over groups with a valid token. f_e: share
  // of the group's valid tokens whose first choice is e, before capacity; m_e:
  // mean probability of e over them. 1 if perfectly balanced, E if collapsed;
  // the paper divides this by E^2.
  Tensor balance_loss;
  // f32[]: mean over valid tokens of logsumexp(logits)^2.
  Tensor z_loss;
  // i32[G, E]: choices that the balance loss counts (before capacity).
  Tensor choice_count;
  // i32[E]: choices that have a slot, over all groups.
  Tensor kept_count;
  // i32[2]: choices k whose expert was full, without those that kRandom
  // rejected.
  Tensor overflow_count;
  // f32[T]: logsumexp(logits), for the gradient; 0 for padding. Absent if not
  // computed.
  Tensor log_sum;
};

// C for `tokens` tokens in one call and `num_experts` experts.
// REQUIRES: ValidateGating(options) is OK and num_experts > 0.
int64_t Capacity(const GatingOptions& options, int64_t tokens,
                 int64_t num_experts);

// InvalidArgument naming the option that is out of range or cannot be combined.
absl::Status ValidateGating(const GatingOptions& options);

// `logits` f32[T, E]; `valid` u8[T] or i32[T], 0 for padding, or an absent
// tensor if every token is valid. Padded rows may contain anything, even NaN. A
// NaN in a valid row makes that token's weights and the losses undefined, but
// no index invalid. Errors: InvalidArgument.
absl::StatusOr<Routing> Top2Gating(const Tensor& logits, const Tensor& valid,
                                   const GatingOptions& options,
                                   const GatingNoise& noise);

// What Top2Gating() takes from the logits of each token, for devices that have
// these. Undefined for padding.
struct GateRows {
  Tensor expert;  // i32[T, 2]: FindTop2 (gate_row.h)
  Tensor logit;   // f32[T, 2]: those of the experts
  // If NeedsSoftmax(options): f32[T], the sum over e of exp(logits[e] -
  // logit[0]).
  Tensor sum;
  // If options.losses: f32[G, E], the sum of probabilities over the valid
  // tokens of each group.
  Tensor probability_sum;
};
bool NeedsSoftmax(const GatingOptions& options);

// The same from `rows`, with the same bits as far as those of `sum` and
// `probability_sum` are the same: else weights, where they are never
// normalised, log_sum and losses differ in the last bits, and slots where
// probabilities that close decide. REQUIRES: options.second_expert is not
// kSampling. Errors: InvalidArgument.
absl::StatusOr<Routing> Top2GatingOfRows(const GateRows& rows,
                                         int64_t num_experts,
                                         const Tensor& valid,
                                         const GatingOptions& options,
                                         const GatingNoise& noise);

// Whether every expert of i32[T, 2] is -1 or in [0, E), and no token has one
// twice: what gradients need. Errors: InvalidArgument.
absl::Status CheckExperts(const Tensor& expert, int64_t num_experts);

// Whether Routing::choice_count is i32[G, E]. Errors: InvalidArgument.
absl::Status CheckChoiceCount(const Tensor& count, int64_t groups,
                              int64_t num_experts);

// Of the tokens that are no padding, for gradients.
struct ValidTokens {
  // `expert` i32[T, 2] as Routing has it, group_size > 0.
  ValidTokens(const Tensor& expert, int64_t group_size);

  // The derivative of the balance loss by a token's probability of an expert is
  // E times the expert's choice_count in the token's group by this.
  double BalanceDivisor(int64_t group, const GatingOptions& options,
                        int64_t num_experts) const;

  int64_t tokens = 0;
  int64_t groups = 0;             // that have some
  std::vector<int64_t> of_group;  // [G]
};

// d loss / d logits, f32[T, E]. `d_weight` f32[T, 2] or absent (0). Choices,
// slots and the counts in the balance loss are constants; kAfterCapacity is
// differentiated through the scaling over the kept choices. Of `routing` only
// expert, slot, choice_count and log_sum are read. Errors: InvalidArgument.
absl::StatusOr<Tensor> GatingGradient(const Tensor& logits,
                                      const Routing& routing,
                                      const GatingOptions& options,
                                      const Tensor& d_weight,
                                      float d_balance_loss, float d_z_loss);

}  // namespace gshard

#endif  // SERVICES_MOE_GATING_H_
