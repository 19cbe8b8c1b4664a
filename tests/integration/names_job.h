// A training job on tests/data/names.tsv that runs for seconds.

#ifndef TESTS_INTEGRATION_NAMES_JOB_H_
#define TESTS_INTEGRATION_NAMES_JOB_H_

#include <string>

#include "services/config/training_job.h"

namespace gshard {

inline TrainingJob NamesJob(const std::string& checkpoint_directory) {
  TrainingJob job;
  job.name = "names";
  ModelConfig& model = job.model;
  model.name = "names";
  model.encoder_layers = 2;
  model.decoder_layers = 2;
  model.model_width = 32;
  model.ffn_width = 48;
  model.expert_width = 40;
  model.heads = 2;
  model.head_width = 16;
  model.experts = 8;
  model.source_vocabulary_size = model.target_vocabulary_size = 300;
  model.shared_vocabulary = true;
  model.max_positions = 64;
  model.dropout.moe = 0.1;
  model.gate.z_loss_coefficient = 1e-3;
  job.data.train_path = "tests/data/names.tsv";
  job.steps = 6;
  job.microbatches_per_step = 5;
  job.tokens_per_microbatch = 128;
  job.max_length = 48;
  job.optimizer = AdamConfig();
  job.schedule = {.multiplier = 0.02, .warmup_steps = 4, .linear_warmup = true};
  job.clip_norm = 0.5;
  job.checkpoint.directory = checkpoint_directory;
  job.progress_every_steps = 1;
  return job;
}

}  // namespace gshard

#endif  // TESTS_INTEGRATION_NAMES_JOB_H_
