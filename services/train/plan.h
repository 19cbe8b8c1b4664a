// Plan: the cost of a model, computed from its configuration alone.
//
// Parameter counts are exact, and so are the bytes of weights, gradients and
// optimizer state; activations are estimates, and the report says so. Nothing
// is allocated, so planning for 10^12 parameters takes no more than for 10^6.
//
// Everything is float32, 4 bytes, except what the model's compute_type and
// wire_type turn into bfloat16, 2 bytes: exchanged rows, and weights that are
// factors of matrix products (a rounded copy, in addition to the float32
// weights where these are updated, else instead of them). Letters: M model
// width, H expert hidden width, E experts per layer, T tokens per microbatch, W
// workers.

#ifndef SERVICES_TRAIN_PLAN_H_
#define SERVICES_TRAIN_PLAN_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "services/config/model_config.h"
#include "services/config/training_job.h"

namespace gshard {

struct PlanOptions {
  int64_t routers = 1;                   // 1 to 65536
  int64_t workers = 1;                   // 1 to 65536; may exceed E
  int64_t tokens_per_microbatch = 4096;  // T, on either side: 1 to 16777216
  OptimizerConfig optimizer = AdafactorConfig();
  // Whether the routers sum dense gradients and update dense parameters among
  // themselves, instead of the coordinator. They then keep the gradients of a
  // step's microbatches, 1 to 65536, until all have run.
  bool routers_reduce = false;
  int64_t microbatches_per_step = TrainingJob().microbatches_per_step;
  // Memory that each router and worker has, on its GPU or its host; 0: unknown.
  int64_t memory_bytes = 0;
};

// Trained numbers by kind.
struct ParameterCounts {
  int64_t experts = 0;    // with their biases, if any
  int64_t attention = 0;  // self- and cross-attention
  int64_t dense_ffn = 0;
  int64_t gates = 0;
  int64_t embeddings = 0;         // a shared one counted once
  int64_t output_projection = 0;  // 0 if tied to the target embedding
  int64_t positions = 0;          // 0 if sinusoidal
  int64_t norm_scales = 0;

  // Counts as the paper does for its 600 B: without the scales of the norms.
  int64_t TotalWithoutNorms() const {
    return experts + attention + dense_ffn + gates + embeddings +
           output_projection + positions;
  }
  int64_t Total() const { return TotalWithoutNorms() + norm_scales; }
};

// Memory of one process, in bytes.
struct MemoryPlan {
  int64_t weights = 0;          // including rounded copies
  int64_t gradients = 0;        // 0 in serving
  int64_t optimizer_state = 0;  // 0 in serving
  int64_t activations = 0;      // estimate, key-value cache included; <= 1 EiB

  int64_t Total() const {
    return weights + gradients + optimizer_state + activations;
  }
};

// Payload between routers and workers, in bytes. In each MoE layer a token
// sends two rows [M] and gets two back, unless one overflows; training does the
// same again for gradients.
struct ExchangePlan {
  int64_t layer_each_way = 0;  // one token, one MoE layer, one direction

  // Over all MoE layers of a stack, both directions: per source token in the
  // encoder, per target token in the decoder. Backward 0 if the model cannot be
  // trained.
  int64_t source_token_forward = 0;
  int64_t target_token_forward = 0;
  int64_t source_token_backward = 0;
  int64_t target_token_backward = 0;
};

struct Plan {
  ModelConfig model;
  PlanOptions options;

  int64_t encoder_moe_layers = 0;
  int64_t decoder_moe_layers = 0;
  int64_t total_experts = 0;  // over all MoE layers

  // Per MoE layer, on the workers with most and with fewest experts.
  int64_t most_experts_per_worker = 0;
  int64_t fewest_experts_per_worker = 0;

  ParameterCounts parameters;

  // Parameters used for one source token and one target token, with two experts
  // per layer; without embeddings, positions, norms and an untied output
  // projection.
  int64_t active_parameters = 0;

  // Whether the model can be trained: int8 weights are for serving.
  bool trains() const { return model.compute_type != ComputeType::kInt8; }

  // All routers are equal, but if they reduce, the router is the one that
  // updates most; the worker is one with most experts. Training assumes one
  // microbatch in flight per router, tokens spread evenly over experts, and
  // where parameters are updated two copies of every gradient (of the
  // microbatch and of the step). Zeros if the model cannot be trained; the
  // coordinator's also if routers reduce.
  MemoryPlan coordinator_training;
  MemoryPlan router_training;
  MemoryPlan worker_training;
  MemoryPlan router_serving;
  MemoryPlan worker_serving;

  // With options.memory_bytes: the fewest workers that have room for their
  // experts, everything else equal; 0 if a single expert per worker, and layer,
  // is too much, or the model cannot be trained.
  int64_t fewest_workers_training = 0;
  int64_t fewest_workers_serving = 0;

  ExchangePlan exchange;

  // Gradients of everything but the experts, which a router sends to the
  // coordinator once per microbatch; 0 if the model cannot be trained.
  int64_t dense_gradient_bytes = 0;
};

// Errors: InvalidArgument if `model` is not valid or an option is out of range.
absl::StatusOr<Plan> MakePlan(const ModelConfig& model,
                              const PlanOptions& options);

}  // namespace gshard

#endif  // SERVICES_TRAIN_PLAN_H_
