#include "services/train/parameter_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <stop_token>
#include <tuple>
#include <vector>

#include "services/base/parallel.h"
#include "services/checkpoint/checkpoint_folder.h"
#include "services/checkpoint/write_shard.h"
#include "services/ops/cast.h"
#include "services/train/job_options.h"
#include "services/train/parameter_store.h"
#include "tests/services/storage/scratch_directory.h"
#include "tests/services/train/hungry_optimizer.h"
#include "tests/testing/panels.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

std::vector<ParameterSpec> Specs() {
  std::vector<ParameterSpec> specs(3);
  specs[0].name = "dense";
  specs[0].dims = {4, 5};
  specs[1].name = "moe.wi";
  specs[1].dims = {3, 4, 5};
  specs[1].per_expert = true;
  specs[2].name = "moe.bi";
  specs[2].dims = {3, 5};
  specs[2].per_expert = true;
  for (ParameterSpec& spec : specs) {
    spec.initializer = {.kind = InitializerKind::kNormal, .stddev = 1.0};
  }
  return specs;
}

// A checkpoint of step 3 with all parameters.
std::string Checkpoint(const ScratchDirectory& scratch, uint64_t seed) {
  ParameterStore store(Specs(), {0, 1, 2},
                       MakeOptimizer(OptimizerConfig(AdafactorConfig())));
  EXPECT_OK(store.Load(nullptr, seed));
  Manifest manifest;
  manifest.step = 3;
  const auto entries = WriteShard({scratch.path(), 3, "all"}, store.Snapshot());
  EXPECT_OK(entries);
  manifest.tensors = *entries;
  const auto path = CommitCheckpoint(scratch.path(), manifest, "");
  EXPECT_OK(path);
  return *path;
}

TEST(ReadParametersTest, RoundsWhatIsNamedToTheBitsOfRoundingAll) {
  const ScratchDirectory scratch;
  ASSERT_OK_AND_ASSIGN(const auto checkpoint,
                       CheckpointReader::Open(Checkpoint(scratch, 11)));
  for (const CheckpointReader* const reader :
       {static_cast<const CheckpointReader*>(nullptr),
        static_cast<const CheckpointReader*>(checkpoint.get())}) {
    ASSERT_OK_AND_ASSIGN(const TensorMap whole,
                         ReadParameters(Specs(), {0, 2}, reader, 11));
    ASSERT_OK_AND_ASSIGN(const TensorMap rounded,
                         ReadParameters(Specs(), {0, 2}, reader, 11,
                                        {{"dense", {0, 1}}, {"moe.wi", {}}}));
    for (const ParameterSpec& spec : Specs()) {
      const Tensor& tensor = rounded.at(spec.name);
      const bool is_rounded = spec.name != "moe.bi";
      EXPECT_EQ(tensor.type(),
                is_rounded ? ElementType::kBFloat16 : ElementType::kFloat32);
      EXPECT_TRUE(TensorEqual(tensor, Cast(whole.at(spec.name), tensor.type())))
          << spec.name;
      EXPECT_EQ(tensor.dim(0), spec.per_expert ? 2 : 4);
    }
  }
}

template <typename T>
void ExpectPacked() {
  const ElementType type = ElementTypeOf<T>::value;
  std::vector<ParameterSpec> specs = Specs();
  specs[0].dims = {8, 4, 16};
  specs[1].dims = {3, 8, 64};
  specs.push_back(specs[0]);
  specs.back().name = "table";
  const WeightForms forms = {
      {"dense", {.row_dims = 2, .type = type}},
      {"table", {.row_dims = 1, .transposed = true, .type = type}},
      {"moe.wi", {.batch_dims = 1, .row_dims = 1, .type = type}}};
  ASSERT_OK_AND_ASSIGN(const TensorMap whole,
                       ReadParameters(specs, {0, 2}, nullptr, 11));
  ASSERT_OK_AND_ASSIGN(const TensorMap read,
                       ReadParameters(specs, {0, 2}, nullptr, 11, forms));
  for (const auto& [name, matrices, rows] :
       {std::tuple<const char*, int64_t, int64_t>{"dense", 1, 32},
        {"table", 1, 16},
        {"moe.wi", 2, 8}}) {
    const Tensor rounded = Cast(whole.at(name), type);
    const Tensor expected =
        InPanels(rounded, matrices, rows, forms.at(name).transposed);
    const Tensor& panels = read.at(name);
    ASSERT_EQ(panels.panel_rows(), HasPanels() ? rows : 0) << name;
    EXPECT_EQ(panels.dims(), rounded.dims());
    const T* const elements = ElementsOf<T>(expected);
    EXPECT_TRUE(
        std::equal(elements, elements + expected.size(), ElementsOf<T>(panels)))
        << name;
  }
}

TEST(ReadParametersTest, PacksWhatIsWantedInPanels) {
  ExpectPacked<float>();
  ExpectPacked<BFloat16>();
}

TEST(ReadParametersTest, AnyNumberOfThreadsReadsTheSame) {
  const ScratchDirectory scratch;
  ASSERT_OK_AND_ASSIGN(const auto checkpoint,
                       CheckpointReader::Open(Checkpoint(scratch, 11)));
  const WeightForms forms = {{"dense", {0, 1}}};
  ASSERT_OK_AND_ASSIGN(
      const TensorMap one,
      ReadParameters(Specs(), {0, 1, 2}, checkpoint.get(), 0, forms));
  for (const int threads : {2, 7}) {
    SetComputeThreads(threads);
    ASSERT_OK_AND_ASSIGN(
        const TensorMap several,
        ReadParameters(Specs(), {0, 1, 2}, checkpoint.get(), 0, forms));
    ASSERT_EQ(several.size(), one.size());
    for (const auto& [name, tensor] : one) {
      EXPECT_TRUE(TensorEqual(tensor, several.at(name))) << name;
    }
    EXPECT_THAT(ReadParameters(Specs(), {1, 7}, checkpoint.get(), 0).status(),
                StatusIs(absl::StatusCode::kNotFound, HasSubstr("/7")));
  }
  SetComputeThreads(1);
}

TEST(ReadParametersTest, TheSeedAndItsCheckpointAreTheSame) {
  const ScratchDirectory scratch;
  ASSERT_OK_AND_ASSIGN(const auto checkpoint,
                       CheckpointReader::Open(Checkpoint(scratch, 11)));
  ASSERT_OK_AND_ASSIGN(const TensorMap seed,
                       ReadParameters(Specs(), {1}, nullptr, 11));
  ASSERT_OK_AND_ASSIGN(const TensorMap read,
                       ReadParameters(Specs(), {1}, checkpoint.get(), 99));
  ASSERT_EQ(seed.size(), read.size());
  for (const auto& [name, tensor] : seed) {
    EXPECT_TRUE(TensorEqual(tensor, read.at(name))) << name;
  }
}

TEST(ReadParametersTest, ALoadCanBeStopped) {
  const ScratchDirectory scratch;
  ASSERT_OK_AND_ASSIGN(const auto checkpoint,
                       CheckpointReader::Open(Checkpoint(scratch, 11)));
  const std::vector<const CheckpointReader*> both = {checkpoint.get(), nullptr};
  std::stop_source stop;
  const std::shared_ptr<const Optimizer> optimizer =
      MakeOptimizer(OptimizerConfig(AdafactorConfig()));
  for (const CheckpointReader* const from : both) {
    ParameterStore store(Specs(), {0, 1, 2}, optimizer);
    EXPECT_OK(store.Load(from, 11, stop.get_token()));
  }
  stop.request_stop();
  for (const CheckpointReader* const from : both) {
    ParameterStore store(Specs(), {0, 1, 2}, optimizer);
    EXPECT_THAT(store.Load(from, 11, stop.get_token()),
                StatusIs(absl::StatusCode::kCancelled, HasSubstr("stopped")));
  }
}

TEST(ReadParametersTest, WhatIsNotThereIsNamed) {
  const ScratchDirectory scratch;
  ASSERT_OK_AND_ASSIGN(const auto checkpoint,
                       CheckpointReader::Open(Checkpoint(scratch, 11)));
  EXPECT_THAT(ReadParameters(Specs(), {7}, checkpoint.get(), 0).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("moe.wi/7")));
  std::vector<ParameterSpec> specs = Specs();
  specs[1].dims[2] = 6;
  EXPECT_THAT(ReadParameters(specs, {1}, checkpoint.get(), 0).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("expected f32[4, 6], got f32[4, 5]")));
}

TEST(OpenToTrainTest, TheCheckpointIsOfTheStepThatIsGoneOnFrom) {
  const ScratchDirectory scratch;
  ParameterSource source;
  ASSERT_OK_AND_ASSIGN(const auto none, OpenToTrain(source));
  EXPECT_EQ(none, nullptr);
  source.checkpoint_directory = Checkpoint(scratch, 1);
  source.step = 5;
  EXPECT_THAT(OpenToTrain(source).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("a checkpoint of step 5, got 3")));
  source.skipped_steps = 2;
  ASSERT_OK_AND_ASSIGN(const auto checkpoint, OpenToTrain(source));
  EXPECT_EQ(checkpoint->manifest().step, 3);
  source.skipped_steps = 5;
  EXPECT_FALSE(OpenToTrain(source).ok());
  source.weights_only = true;
  EXPECT_OK(OpenToTrain(source).status());
}

TEST(CheckStepsTest, NoMoreAreLeftOutThanThereAre) {
  const auto check = [](int64_t step, int64_t skipped) {
    ParameterSource source;
    source.step = step;
    source.skipped_steps = skipped;
    return CheckSteps(source);
  };
  EXPECT_OK(check(2, 2));
  EXPECT_THAT(check(-1, 0),
              StatusIs(kInvalid, HasSubstr("step: expected at least 0")));
  EXPECT_THAT(check(2, 3),
              StatusIs(kInvalid, HasSubstr("expected 0 to 2, got 3")));
  EXPECT_THAT(check(2, -1), StatusIs(kInvalid, HasSubstr("got -1")));
}

TEST(ReadParametersTest, WithoutMemoryItSaysSoWhateverTheForm) {
  std::vector<ParameterSpec> specs(1);
  specs[0].name = "huge";
  specs[0].dims = kHugeDims;
  for (const WeightForms& forms :
       {WeightForms(), WeightForms{{"huge", {}}}, WeightForms{{"huge", {0, 1}}},
        WeightForms{
            {"huge",
             {.batch_dims = 0, .row_dims = 1, .type = ElementType::kInt8}}}}) {
    EXPECT_THAT(ReadParameters(specs, {}, nullptr, 1, forms).status(),
                StatusIs(absl::StatusCode::kResourceExhausted,
                         HasSubstr("no memory for parameter 'huge'")));
  }
}

}  // namespace
}  // namespace gshard
