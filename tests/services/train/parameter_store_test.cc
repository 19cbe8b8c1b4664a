#include "services/train/parameter_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "services/checkpoint/checkpoint_folder.h"
#include "services/checkpoint/write_shard.h"
#include "services/config/training_job.h"
#include "services/train/job_options.h"
#include "tests/services/storage/scratch_directory.h"
#include "tests/services/train/hungry_optimizer.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

constexpr int kExperts = 3;

ParameterStore Sample() {
  std::vector<ParameterSpec> specs(2);
  specs[0].name = "dense";
  specs[0].dims = {4, 5};
  specs[1].name = "moe.wi";
  specs[1].dims = {kExperts, 4, 5};
  specs[1].per_expert = true;
  return ParameterStore(specs, {0, 1, 2},
                        MakeOptimizer(OptimizerConfig(AdamConfig())));
}

GradientList Gradients(uint64_t seed) {
  return {{"dense", RandomTensor({4, 5}, seed)},
          {"moe.wi", RandomTensor({kExperts, 4, 5}, seed + 1)}};
}

std::vector<NamedTensor> Copies(const std::vector<NamedTensor>& tensors) {
  std::vector<NamedTensor> copies;
  for (const NamedTensor& named : tensors) {
    copies.push_back({named.name, named.tensor.Clone()});
  }
  return copies;
}

// A snapshot keeps the weights and optimizer state of its step: training goes
// on while a checkpoint is written from it.
TEST(ParameterStoreTest, ASnapshotIsOfItsStep) {
  ScratchDirectory scratch;
  ParameterStore store = Sample();
  ASSERT_OK(store.Load(nullptr, 1));
  ASSERT_OK(store.Update(Gradients(10), 1.0, 1, 0.01));
  const std::vector<NamedTensor> expected = Copies(store.Snapshot());
  ASSERT_EQ(expected.size(), 4u * 3);  // with Adam's two moments
  const std::vector<NamedTensor> snapshot = store.Snapshot();
  for (const int64_t step : {2, 3, 4}) {
    ASSERT_OK(store.Update(Gradients(10 * step), 1.0, step, 0.01));
  }
  Manifest manifest;
  manifest.step = 1;
  ASSERT_OK_AND_ASSIGN(manifest.tensors,
                       WriteShard({scratch.path(), 1, "all"}, snapshot));
  ASSERT_OK_AND_ASSIGN(const std::string path,
                       CommitCheckpoint(scratch.path(), manifest, ""));
  ASSERT_OK_AND_ASSIGN(const auto reader, CheckpointReader::Open(path));
  std::vector<TensorSpec> specs;
  for (const NamedTensor& named : expected) {
    specs.push_back({named.name, named.tensor.type(), named.tensor.dims()});
  }
  ASSERT_OK(reader->CheckExactly(specs));
  const std::vector<NamedTensor> now = store.Snapshot();
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_OK_AND_ASSIGN(const Tensor written, reader->Read(expected[i].name));
    EXPECT_TRUE(TensorEqual(written, expected[i].tensor)) << expected[i].name;
    EXPECT_FALSE(TensorEqual(now[i].tensor, expected[i].tensor))
        << expected[i].name;
  }
  // The weights alone: the optimizer's state is as in a new store.
  ASSERT_OK(store.Load(nullptr, 1));
  const std::vector<NamedTensor> fresh = store.Snapshot();
  ASSERT_OK(store.Load(reader.get(), 1, /*stop=*/{}, /*weights_only=*/true));
  const std::vector<NamedTensor> loaded = store.Snapshot();
  for (size_t i = 0; i < loaded.size(); ++i) {
    const bool is_state = absl::StartsWith(loaded[i].name, "optimizer/");
    EXPECT_TRUE(TensorEqual(loaded[i].tensor,
                            is_state ? fresh[i].tensor : expected[i].tensor))
        << loaded[i].name;
  }
}

TEST(ParameterStoreTest, UpdatesAreInPlaceOnceTheSnapshotIsGone) {
  ParameterStore store = Sample();
  ASSERT_OK(store.Load(nullptr, 1));
  const std::byte* const before = store.tensors().at("moe.wi").raw();
  ASSERT_OK(store.Update(Gradients(1), 1.0, 1, 0.01));
  EXPECT_EQ(store.tensors().at("moe.wi").raw(), before);
  {
    const auto snapshot = store.Snapshot();
    ASSERT_OK(store.Update(Gradients(2), 1.0, 2, 0.01));
    EXPECT_NE(store.tensors().at("moe.wi").raw(), before);
  }
  const std::byte* const after = store.tensors().at("moe.wi").raw();
  ASSERT_OK(store.Update(Gradients(3), 1.0, 3, 0.01));
  EXPECT_EQ(store.tensors().at("moe.wi").raw(), after);
}

TEST(ParameterStoreTest, WithoutMemoryItSaysSo) {
  constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;
  const auto store = [](const Dims& dims, std::vector<NamedShape> state) {
    std::vector<ParameterSpec> specs(1);
    specs[0].name = "dense";
    specs[0].dims = dims;
    return ParameterStore(specs, {},
                          std::make_shared<HungryOptimizer>(std::move(state)));
  };
  EXPECT_THAT(store(kHugeDims, {}).Load(nullptr, 1),
              StatusIs(kExhausted, HasSubstr("'dense'")));
  EXPECT_THAT(store({4, 5}, {{"first", kHugeDims}}).Load(nullptr, 1),
              StatusIs(kExhausted, HasSubstr("no memory for f32")));
  ParameterStore small = store({4, 5}, {});
  ASSERT_OK(small.Load(nullptr, 1));
  EXPECT_THAT(small.Update({{"dense", RandomTensor({4, 5}, 1)}}, 1.0, 1, 0.01),
              StatusIs(kExhausted, HasSubstr("no memory for update 1")));
}

}  // namespace
}  // namespace gshard
