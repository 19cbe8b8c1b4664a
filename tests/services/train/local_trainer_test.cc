#include "tests/reference/local_trainer.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "services/base/parallel.h"
#include "services/base/random.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

constexpr int64_t kSentences = 9, kLength = 21;

// A model wide enough for kernels of several tiles.
TrainingJob Job(OptimizerConfig optimizer) {
  TrainingJob job;
  job.name = "threads";
  ModelConfig& model = job.model;
  model.encoder_layers = model.decoder_layers = 2;
  model.model_width = 256;
  model.ffn_width = model.expert_width = 512;
  model.heads = 4;
  model.head_width = 64;
  model.experts = 4;
  model.source_vocabulary_size = model.target_vocabulary_size = 1000;
  model.shared_vocabulary = true;
  job.microbatches_per_step = 2;
  job.optimizer = optimizer;
  job.schedule = {.multiplier = 0.01, .warmup_steps = 10};
  return job;
}

Batch RandomBatch(int64_t step, int64_t index) {
  const auto ids = [&](uint64_t salt) {
    Tensor tensor(ElementType::kInt32, {kSentences, kLength});
    for (int64_t i = 0; i < tensor.size(); ++i) {
      tensor.i32()[i] = static_cast<int32_t>(
          4 + RandomBelow(FoldIn(FoldIn(salt, step), index), i, 996));
    }
    return tensor;
  };
  Tensor lengths(ElementType::kInt32, {kSentences});
  for (int64_t s = 0; s < kSentences; ++s) {
    lengths.i32()[s] = static_cast<int32_t>(kLength - s);
  }
  return {.source = ids(1),
          .source_lengths = lengths,
          .target_input = ids(2),
          .target_labels = ids(3),
          .target_lengths = lengths,
          .source_tokens = kSentences * kLength,
          .target_tokens = kSentences * kLength};
}

// Trains two steps; returns all parameters and optimizer states.
void Train(const OptimizerConfig& optimizer, int threads,
           std::map<std::string, Tensor>* tensors) {
  SetComputeThreads(threads);
  ASSERT_OK_AND_ASSIGN(const auto trainer,
                       LocalTrainer::Create(Job(optimizer)));
  for (int step = 0; step < 2; ++step) ASSERT_OK(trainer->Step(RandomBatch));
  for (const NamedTensor& named : trainer->parameters().Snapshot()) {
    (*tensors)[named.name] = named.tensor.Clone();
  }
  SetComputeThreads(1);
}

TEST(LocalTrainerTest, ThreadsDoNotChangeBits) {
  for (const OptimizerConfig& optimizer :
       {OptimizerConfig(AdamConfig()), OptimizerConfig(AdafactorConfig())}) {
    std::map<std::string, Tensor> alone;
    Train(optimizer, 1, &alone);
    ASSERT_GT(alone.size(), 20u);
    for (const int threads : {2, 7}) {
      std::map<std::string, Tensor> together;
      Train(optimizer, threads, &together);
      ASSERT_EQ(together.size(), alone.size());
      for (const auto& [name, tensor] : alone) {
        EXPECT_TRUE(TensorEqual(together.at(name), tensor))
            << name << ", " << threads << " threads";
      }
    }
  }
}

}  // namespace
}  // namespace gshard
