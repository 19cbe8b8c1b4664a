// A small model trained on several WorkerSessions in this process. Its
// reference is LocalTrainer.

#ifndef TESTS_EXPERT_WORKER_TRAINING_MODEL_H_
#define TESTS_EXPERT_WORKER_TRAINING_MODEL_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "expert_worker/training_worker_session.h"
#include "services/base/check.h"
#include "services/base/random.h"
#include "services/base/status_macros.h"
#include "services/model/transformer.h"
#include "services/moe/graph_ops.h"
#include "services/segments/role_split.h"
#include "services/train/job_options.h"
#include "services/train/microbatch.h"
#include "tests/reference/local_trainer.h"
#include "tests/services/exchange/local_exchange.h"

namespace gshard {

// Of a worker's sessions, in bytes.
inline constexpr int64_t kMemory = int64_t{1} << 30;

constexpr int64_t kMicrobatches = 3;

inline TrainingJob SmallJob(OptimizerConfig optimizer = AdafactorConfig()) {
  TrainingJob job;
  job.name = "small";
  job.model.encoder_layers = 2;
  job.model.decoder_layers = 1;
  job.model.model_width = 8;
  job.model.ffn_width = 12;
  job.model.expert_width = 10;
  job.model.heads = 2;
  job.model.head_width = 4;
  job.model.experts = 5;
  job.model.source_vocabulary_size = 13;
  job.model.target_vocabulary_size = 11;
  job.model.max_positions = 16;
  job.microbatches_per_step = kMicrobatches;
  job.optimizer = optimizer;
  job.schedule.warmup_steps = 2;
  job.clip_norm = 0.5;
  return job;
}

inline Batch RandomBatch(int64_t step, int64_t index) {
  constexpr int32_t kSentences = 3, kLength = 5;
  const uint64_t key = FoldIn(FoldIn(99, step), index);
  uint64_t next = 0;
  const auto draw = [&](int32_t low, int32_t high) {
    return low + static_cast<int32_t>(RandomUniform(key, next++) *
                                      static_cast<float>(high - low));
  };
  Batch batch;
  std::vector<int32_t> source, input, labels, source_lengths, target_lengths;
  for (int32_t b = 0; b < kSentences; ++b) {
    source_lengths.push_back(draw(2, kLength + 1));
    target_lengths.push_back(draw(2, kLength + 1));
    batch.source_tokens += source_lengths[b];
    batch.target_tokens += target_lengths[b];
    for (int32_t l = 0; l < kLength; ++l) {
      source.push_back(l < source_lengths[b] ? draw(3, 13) : 0);
      input.push_back(l < target_lengths[b] ? draw(3, 11) : 0);
      labels.push_back(l < target_lengths[b] ? draw(3, 11) : Batch::kNoLabel);
    }
  }
  batch.source = Tensor::Ints({kSentences, kLength}, source);
  batch.source_lengths = Tensor::Ints({kSentences}, source_lengths);
  batch.target_input = Tensor::Ints({kSentences, kLength}, input);
  batch.target_labels = Tensor::Ints({kSentences, kLength}, labels);
  batch.target_lengths = Tensor::Ints({kSentences}, target_lengths);
  return batch;
}

// Deals experts 0 .. total - 1 to the workers round-robin.
inline ExpertsOfWorkers DealExperts(int32_t total, int workers) {
  ExpertsOfWorkers experts(workers);
  for (int32_t e = 0; e < total; ++e) experts[e % workers].push_back(e);
  return experts;
}

inline std::vector<ParameterSpec> SpecsOf(const ModelConfig& model,
                                          bool per_expert) {
  std::vector<ParameterSpec> specs;
  for (ParameterSpec& spec : ModelParameters(model)) {
    if (spec.per_expert == per_expert) specs.push_back(std::move(spec));
  }
  return specs;
}

inline RolePrograms SplitTraining(const TrainingJob& job) {
  RegisterMoeOps();
  RegisterShardingOps();
  absl::StatusOr<Program> program =
      BuildTrainProgram(job.model, MakeLossConfig(job));
  CHECK(program.ok());
  absl::StatusOr<RolePrograms> roles = SplitRoles(*program);
  CHECK(roles.ok());
  return *std::move(roles);
}

// A worker's session of `job`, initialized from the job's seed.
inline WorkerSessionSpec TrainingSpec(const TrainingJob& job,
                                      const std::vector<Segment>& segments,
                                      std::vector<int32_t> experts) {
  WorkerSessionSpec spec;
  spec.segments = segments;
  spec.parameters = SpecsOf(job.model, /*per_expert=*/true);
  spec.experts = std::move(experts);
  spec.total_experts = static_cast<int32_t>(job.model.experts);
  spec.source.initial_seed = job.seed;
  spec.optimizer = MakeOptimizer(job.optimizer);
  spec.microbatches_per_step = job.microbatches_per_step;
  return spec;
}

// An exchange with sessions in this process.
class SessionSegments final : public LocalExchange {
 public:
  // The router "dies" after `calls_left` rounds of calls.
  SessionSegments(const ExpertsOfWorkers& experts,
                  std::vector<WorkerSession*> sessions, SegmentRun run,
                  int calls_left = 1 << 30)
      : LocalExchange(
            experts,
            [sessions, run](int w, const WorkerCall& call) {
              SegmentRun of = run;
              of.segment = std::string(call.segment);
              return sessions[w]->RunSegment(of, InputsOf(call));
            },
            run.step),
        calls_left_(calls_left) {}

  absl::StatusOr<std::vector<Tensor>> Call(
      const Node& node, absl::Span<const Tensor> operands) override {
    if (calls_left_-- == 0) return absl::UnavailableError("the router died");
    return LocalExchange::Call(node, operands);
  }

 private:
  int calls_left_;
};

}  // namespace gshard

#endif  // TESTS_EXPERT_WORKER_TRAINING_MODEL_H_
