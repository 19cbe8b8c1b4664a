// The GShard Transformer (arXiv 2006.16668, section 2) as single-device
// programs.
//
// Encoder and decoder stacks of pre-norm layers; in every `moe_period`-th
// layer the feed-forward sublayer is a Mixture of Experts. The programs say
// what is computed, never where; the one thing they carry for distribution are
// the annotations of the paper's Algorithm 2 on the experts' weights and on
// the dispatched tokens (services/sharding reads them, nothing else does).
//
// Letters: B sentences, Ls and Lt source and target positions, K hypotheses of
// a sentence, P positions that a cache has room for, M model width, N heads,
// D head width, V target vocabulary, E experts.

#ifndef SERVICES_MODEL_TRANSFORMER_H_
#define SERVICES_MODEL_TRANSFORMER_H_

#include <string>

#include "absl/status/statusor.h"
#include "services/config/model_config.h"
#include "services/graph/program.h"

namespace gshard {

struct LossConfig {
  double label_smoothing = 0.1;
  double z_loss = 0.0;  // of the vocabulary: coefficient of logsumexp^2
};

// One microbatch of training, forward and backward.
//
// Inputs: source i32[B, Ls], source_positions i32[Ls], source_lengths i32[B],
// source_valid i32[B, Ls] (0 at padding); target i32[B, Lt],
// target_positions i32[Lt], target_lengths i32[B], target_valid i32[B, Lt];
// labels i32[B, Lt] (negative at padding); target_tokens f32[], the number of
// labels that are not padding; key i64[], of all random numbers.
//
// Outputs: "loss", f32[]: sum over target tokens of the cross entropy;
// for each MoE layer "kept/<layer>" i32[E], "overflow/<layer>" i32[2] and
// "balance_loss/<layer>" f32[], E-scaled (1 when balanced) and without
// coefficient; "gradient/<parameter>" for each parameter, of
//
//   loss + target_tokens * sum over layers (balance_coefficient * balance_loss
//                                           + z_coefficient * z_loss)
//
// so that gradients of microbatches add up, and dividing their sum by all
// target tokens of a step gives the gradient of the mean loss.
absl::StatusOr<Program> BuildTrainProgram(const ModelConfig& config,
                                          const LossConfig& loss);

// One microbatch of held-out text, forward only: without dropout, and with the
// gate's settings for evaluation.
//
// Inputs: those of BuildTrainProgram, but target_tokens. Outputs: "loss",
// "kept/<layer>" and "overflow/<layer>" as there; the loss without label
// smoothing and z-loss, so that it is that of the text under the model.
absl::StatusOr<Program> BuildEvaluateProgram(const ModelConfig& config);

// The encoder, for serving.
//
// Inputs: source, source_positions, source_lengths, source_valid as above.
// Outputs, per decoder layer i: "cross_key/<i>" and "cross_value/<i>"
// [B, Ls, N, D]; "kept/<layer>" and "overflow/<layer>" as above.
absl::StatusOr<Program> BuildEncodeProgram(const ModelConfig& config);

// One position of the decoder for K hypotheses of each sentence, for serving.
//
// Inputs: tokens i32[B, K], the last token of each hypothesis; positions
// i32[B, K], its position; lengths i32[B*K], positions + 1; valid i32[B, K],
// 0 for a hypothesis to be ignored; source_lengths i32[B];
// "cross_key/<i>" and "cross_value/<i>" [B, Ls, N, D]; "self_key/<i>" and
// "self_value/<i>" [B*K, P, N, D], the caches of earlier positions, updated in
// place if moved in.
// Outputs: "logits" [B*K, V]; "self_key/<i>" and "self_value/<i>";
// "kept/<layer>" and "overflow/<layer>".
absl::StatusOr<Program> BuildDecodeProgram(const ModelConfig& config);

}  // namespace gshard

#endif  // SERVICES_MODEL_TRANSFORMER_H_
