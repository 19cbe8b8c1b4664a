#include "client/checkpoint_summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "services/config/training_job.h"
#include "services/train/job_options.h"
#include "services/train/parameter_store.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

// The manifest of a model's checkpoint, without its tensor files.
Manifest Sample() {
  ModelConfig model;
  Manifest manifest;
  manifest.step = 12;
  manifest.model_config = "encoder_layers: 2\n";
  manifest.tokenizer_file = "source.model";
  const TrainingJob job;
  for (const TensorSpec& spec :
       CheckpointTensors(model, MakeOptimizer(job.optimizer).get())) {
    manifest.tensors.push_back({.name = spec.name,
                                .file = "a.safetensors",
                                .type = spec.type,
                                .dims = spec.dims,
                                .sha256 = ""});
  }
  return manifest;
}

TEST(CheckpointSummaryTest, KnowsTheNamesThatModelsGive) {
  EXPECT_EQ(KindOfTensor("encoder.1.moe.wi/17"), TensorKind::kExpert);
  EXPECT_EQ(KindOfTensor("encoder.1.moe.gate"), TensorKind::kDense);
  EXPECT_EQ(KindOfTensor("a/b"), TensorKind::kDense);
  EXPECT_EQ(KindOfTensor("a/"), TensorKind::kDense);
  EXPECT_EQ(KindOfTensor("optimizer/encoder.1.moe.wi/17/row"),
            TensorKind::kOptimizer);
}

TEST(CheckpointSummaryTest, EveryTensorIsInOneGroup) {
  const Manifest manifest = Sample();
  ASSERT_GT(manifest.tensors.size(), 50u);
  int64_t tensors = 0;
  uint64_t bytes = 0, expected = 0;
  TensorKind last = TensorKind::kDense;
  bool has_experts = false;
  for (const TensorGroup& group : GroupTensors(manifest)) {
    tensors += group.tensors;
    bytes += group.bytes;
    EXPECT_LE(last, group.kind);
    last = group.kind;
    has_experts |= group.name == "encoder.*.moe.wi/*";
  }
  for (const TensorEntry& entry : manifest.tensors) {
    expected += TensorBytes(entry.type, entry.dims).value();
  }
  EXPECT_EQ(tensors, static_cast<int64_t>(manifest.tensors.size()));
  EXPECT_EQ(bytes, expected);
  EXPECT_TRUE(has_experts);
  EXPECT_EQ(last, TensorKind::kOptimizer);
}

TEST(CheckpointSummaryTest, TextAndJsonSayTheSame) {
  Manifest manifest = Sample();
  manifest.validation_loss = 2.25;
  const std::string text = CheckpointToText("/a/step-00000012", manifest);
  EXPECT_THAT(text, HasSubstr("step             12"));
  EXPECT_THAT(text, HasSubstr("validation loss  2.25"));
  EXPECT_THAT(text, HasSubstr("encoder_layers: 2"));
  EXPECT_THAT(text, HasSubstr("a.safetensors"));
  const auto json = CheckpointToJson("/a/step-00000012", manifest);
  EXPECT_EQ(json["step"], 12);
  EXPECT_EQ(json["validation_loss"], 2.25);
  EXPECT_EQ(json["tensors"], manifest.tensors.size());
  EXPECT_EQ(json["shards"][0]["file"], "a.safetensors");
  manifest.validation_loss.reset();
  EXPECT_THAT(CheckpointToText("", manifest), HasSubstr("not measured"));
  EXPECT_TRUE(CheckpointToJson("", manifest)["validation_loss"].is_null());
}

}  // namespace
}  // namespace gshard
