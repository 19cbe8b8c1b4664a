#include "tests/services/coordinator/fake_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/checkpoint/checkpoint.h"
#include "services/checkpoint/checkpoint_folder.h"
#include "services/config/model_config_proto.h"
#include "services/model/parameters.h"
#include "services/tokenizer/trainer.h"
#include "services/train/job_options.h"
#include "services/train/step_scale.h"
#include "tests/services/coordinator/fake_gradients.h"
#include "tests/services/storage/scratch_directory.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {

const std::string& FakeTokenizerPath() {
  static const std::string& path = *[] {
    auto* const path =
        new std::string(::testing::TempDir() + "coordinator_test.model");
    std::vector<std::string> sentences;
    for (int i = 0; i < 200; ++i) {
      sentences.push_back(absl::StrCat("a b c d number ", i));
    }
    TokenizerOptions options;
    options.vocab_size = 64;
    options.languages = {"de"};
    const absl::Status status = TrainTokenizer(options, sentences, *path);
    CHECK(status.ok());
    return path;
  }();
  return path;
}

TrainingJob MakeFakeJob(const std::string& name,
                        const ScratchDirectory& scratch) {
  TrainingJob job;
  job.name = name;
  job.model.name = "tiny";
  job.model.encoder_layers = 1;
  job.model.decoder_layers = 1;
  job.model.model_width = 8;
  job.model.ffn_width = 8;
  job.model.expert_width = 4;
  job.model.heads = 2;
  job.model.head_width = 4;
  job.model.experts = 3;
  job.model.moe_period = 1;
  job.model.shared_vocabulary = true;
  job.model.source_vocabulary_size = 64;
  job.model.target_vocabulary_size = 64;
  job.data.train_path = scratch / "train.tsv";
  Spill(job.data.train_path, "de\teins\tone\nde\tzwei\ttwo\n");
  job.data.source_tokenizer_path = FakeTokenizerPath();
  job.data.default_language = "de";
  job.steps = 3;
  job.microbatches_per_step = 4;
  job.clip_norm = 0.5;
  job.schedule.multiplier = 0.1;
  job.schedule.warmup_steps = 1;
  job.checkpoint.directory = scratch / name;
  job.progress_every_steps = 1;
  return job;
}

namespace {

std::vector<int32_t> AllExperts(const ModelConfig& model) {
  std::vector<int32_t> experts(model.experts);
  std::iota(experts.begin(), experts.end(), 0);
  return experts;
}

}  // namespace

std::unique_ptr<ParameterStore> ExpectedParameters(
    const TrainingJob& job, int64_t steps, const std::set<int64_t>& skipped) {
  ModelConfig model = job.model;
  auto store = std::make_unique<ParameterStore>(
      ModelParameters(model), AllExperts(model), MakeOptimizer(job.optimizer));
  std::unique_ptr<CheckpointReader> initial;
  if (!job.initialize_from.empty()) {
    auto opened = CheckpointReader::Open(job.initialize_from);
    CHECK(opened.ok());
    initial = *std::move(opened);
  }
  CHECK(store->Load(initial.get(), job.seed, /*stop=*/{}, /*weights_only=*/true)
            .ok());
  const Schedule schedule = MakeSchedule(job);
  for (int64_t step = 1; step <= steps; ++step) {
    if (skipped.count(step) > 0) continue;
    const GradientList gradients =
        SummedGradients(*store, step, job.microbatches_per_step);
    int64_t tokens = 0;
    for (int32_t m = 0; m < job.microbatches_per_step; ++m) {
      tokens += FakeStats(model, step, m).target_tokens();
    }
    const auto scale =
        ScaleStep(TotalSquaredNorm(*store->SquaredNorms(gradients)), tokens,
                  job.clip_norm);
    CHECK(scale.ok());
    CHECK(store
              ->Update(gradients, scale->gradient_scale, step,
                       schedule.LearningRate(step))
              .ok());
  }
  return store;
}

void ExpectTrained(TrainingJob job, int64_t step,
                   const std::set<int64_t>& skipped) {
  ASSERT_OK_AND_ASSIGN(const auto reader, CheckpointReader::Open(CheckpointPath(
                                              job.checkpoint.directory, step)));
  ASSERT_OK_AND_ASSIGN(job.model,
                       ParseModelConfig(reader->manifest().model_config));
  const auto optimizer = MakeOptimizer(job.optimizer);
  ASSERT_OK(
      reader->CheckExactly(CheckpointTensors(job.model, optimizer.get())));
  ParameterStore trained(ModelParameters(job.model), AllExperts(job.model),
                         optimizer);
  ASSERT_OK(trained.Load(reader.get(), 0));
  const auto expected = ExpectedParameters(job, step, skipped);
  for (const auto& [name, tensor] : expected->tensors()) {
    EXPECT_TRUE(TensorEqual(trained.tensors().at(name), tensor)) << name;
  }
  EXPECT_EQ(reader->manifest().metadata.at("seed"), "1");
  ASSERT_OK_AND_ASSIGN(const std::string tokenizer, reader->ReadTokenizer());
  EXPECT_EQ(tokenizer, Slurp(FakeTokenizerPath()));
}

}  // namespace gshard
