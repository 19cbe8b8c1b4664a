// The GShard Transformer (arXiv 2006.16668, section 2) as single-device
// programs.
//
// Encoder and decoder stacks of pre-norm layers; in every `moe_period`-th layer
// the feed-forward sublayer is a Mixture of Experts. The programs say what is
// computed, never where; their only trace of distribution are the annotations
// of the paper's Algorithm 2 on the experts' weights and on the dispatched
// tokens, which only services/sharding reads.
//
// Letters: B sentences, Ls and Lt source and target positions, R hypotheses,
// S pages of a cache and P positions of a page, M model width, N heads, D head
// width, V target vocabulary, E experts.

#ifndef SERVICES_MODEL_TRANSFORMER_H_
#define SERVICES_MODEL_TRANSFORMER_H_

#include <string>

#include "absl/status/statusor.h"
#include "services/config/model_config.h"
#include "services/graph/program.h"

namespace gshard {

struct LossConfig {
  double label_smoothing = 0.1;
  double z_loss = 0.0;  // vocabulary z-loss: coefficient of logsumexp^2
};

// One microbatch of training, forward and backward.
//
// Inputs: source i32[B, Ls], source_positions i32[Ls], source_lengths i32[B],
// source_valid i32[B, Ls] (0 at padding); target i32[B, Lt], target_positions
// i32[Lt], target_lengths i32[B], target_valid i32[B, Lt]; labels i32[B, Lt]
// (negative at padding); target_tokens f32[], the number of labels that are not
// padding; key i64[], the seed of all random numbers.
//
// Outputs: "loss", f32[]: sum over target tokens of the cross entropy, with
// label smoothing and vocabulary z-loss; for each MoE layer "kept/<layer>"
// i32[E], "overflow/<layer>" i32[2] and "balance_loss/<layer>" f32[], E-scaled
// (1 when balanced), mean over groups and without coefficient; "log_sum_square"
// and "gate_log_sum_square/<layer>" f32[], the largest square of
// logsumexp(logits) of a token; "gradient/<parameter>" for each parameter, of
//
//   loss + target_tokens * sum over layers (balance_coefficient * balance_loss
//                                           + z_coefficient * z_loss)
//
// so that gradients of microbatches add up, and dividing their sum by all
// target tokens of a step gives the gradient of the mean loss.
absl::StatusOr<Program> BuildTrainProgram(const ModelConfig& config,
                                          const LossConfig& loss);

// One microbatch of held-out text, forward only: without dropout, and with the
// gate's evaluation settings.
//
// Inputs: those of BuildTrainProgram except target_tokens. Outputs: "loss",
// "kept/<layer>" and "overflow/<layer>" as there; the loss excludes label
// smoothing and z-loss, so it is the text's cross entropy under the model.
absl::StatusOr<Program> BuildEvaluateProgram(const ModelConfig& config);

// The encoder, for serving.
//
// Inputs: source, source_positions, source_lengths, source_valid as above.
// Outputs, per decoder layer i: "cross_key/<i>" and "cross_value/<i>"
// [B, Ls, N, D]; "kept/<layer>" and "overflow/<layer>" as above.
//
// With `routing`, here and below, also "expert/<layer>", "slot/<layer>" and
// "weight/<layer>", as in Layers::OutputRouting, with a row per token.
absl::StatusOr<Program> BuildEncodeProgram(const ModelConfig& config,
                                           bool routing = false);

// One decoder step for R hypotheses of any sentences, each at its own position,
// for serving. Keys and values of all of them are in one paged cache per layer
// (services/ops/cache.h): those of the hypotheses' earlier positions, and those
// of the sources.
//
// Inputs: tokens i32[R, 1], the last token of each hypothesis; positions i32[R,
// 1], its position; valid i32[R, 1], 0 for rows to ignore; slots i32[R], where
// its keys and values go; lengths i32[R], positions + 1, and their pages,
// i32[R, T]; source_lengths i32[R] and source_pages i32[R, Ts]; "key/<i>" and
// "value/<i>" [S, P, N, D], the caches, updated in place if moved in. Outputs:
// "logits" [R, V]; "key/<i>" and "value/<i>"; "kept/<layer>" and
// "overflow/<layer>".
absl::StatusOr<Program> BuildDecodeProgram(const ModelConfig& config,
                                           bool routing = false);

}  // namespace gshard

#endif  // SERVICES_MODEL_TRANSFORMER_H_
