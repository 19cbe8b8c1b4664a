#include "services/checkpoint/write_shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "services/checkpoint/checkpoint_folder.h"
#include "tests/services/storage/disk_faults.h"
#include "tests/services/storage/scratch_directory.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

// Updates like an optimizer: in place, or in a copy if the buffer is shared.
void AddOne(Tensor* tensor) {
  if (!tensor->unique()) *tensor = tensor->Clone();
  for (int64_t i = 0; i < tensor->size(); ++i) tensor->f32()[i] += 1;
}

TEST(WriteShardTest, WritesTheSnapshotWhileItsOwnerGoesOn) {
  ScratchDirectory scratch;
  Gate gate(DiskChange::Kind::kCreate, "a.safetensors");
  Tensor weights = Tensor::Floats({3}, {1, 2, 3});
  const std::byte* const before = std::as_const(weights).raw();
  std::mutex owner;
  std::vector<NamedTensor> snapshot = {{"w", weights}};
  absl::StatusOr<std::vector<TensorEntry>> entries;
  std::thread writer([&] {
    entries = WriteShard({scratch.path(), 7, "a"}, snapshot, nullptr, &gate);
    std::lock_guard<std::mutex> lock(owner);
    snapshot.clear();
  });
  gate.WaitUntilReached();
  const auto update = [&] {
    std::lock_guard<std::mutex> lock(owner);
    AddOne(&weights);
  };
  // The gate stops the writer before it reads anything.
  update();
  EXPECT_NE(std::as_const(weights).raw(), before);
  gate.Open();
  update();  // concurrent with the writer, for ThreadSanitizer
  writer.join();
  update();
  EXPECT_TRUE(weights.unique());
  Manifest manifest;
  manifest.step = 7;
  ASSERT_OK_AND_ASSIGN(manifest.tensors, entries);
  ASSERT_OK_AND_ASSIGN(const std::string path,
                       CommitCheckpoint(scratch.path(), manifest, ""));
  ASSERT_OK_AND_ASSIGN(const auto reader, CheckpointReader::Open(path));
  ASSERT_OK_AND_ASSIGN(const Tensor written, reader->Read("w"));
  EXPECT_TRUE(TensorEqual(written, Tensor::Floats({3}, {1, 2, 3})));
  EXPECT_TRUE(TensorEqual(weights, Tensor::Floats({3}, {4, 5, 6})));
}

TEST(WriteShardTest, EndsAtTheNextTensorIfNobodyWantsIt) {
  const std::vector<NamedTensor> tensors = {{"a", Tensor::Floats({1}, {1})},
                                            {"b", Tensor::Floats({1}, {2})}};
  for (int wanted = 0; wanted <= 3; ++wanted) {
    ScratchDirectory scratch;
    int asked = 0;
    const auto entries = WriteShard({scratch.path(), 1, "a"}, tensors,
                                    [&] { return asked++ == wanted; });
    EXPECT_THAT(entries, StatusIs(absl::StatusCode::kCancelled,
                                  HasSubstr("'a' of step 1")));
    EXPECT_EQ(asked, wanted + 1);
    // No file has the shard's final name.
    const auto names = ListDirectory(PartialCheckpointPath(scratch.path(), 1));
    if (wanted == 0) {
      EXPECT_FALSE(names.ok());
    } else {
      ASSERT_OK(names);
      for (const std::string& name : *names) EXPECT_NE(name, "a.safetensors");
    }
  }
}

TEST(WriteShardTest, SaysThatTheDiskIsFull) {
  ScratchDirectory scratch;
  FullDisk faults(/*point=*/4);
  EXPECT_THAT(WriteShard({scratch.path(), 1, "a"},
                         {{"w", Tensor::Floats({1}, {1})}}, nullptr, &faults),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("No space left")));
  EXPECT_OK(
      WriteShard({scratch.path(), 1, "a"}, {{"w", Tensor::Floats({1}, {1})}}));
}

}  // namespace
}  // namespace gshard
