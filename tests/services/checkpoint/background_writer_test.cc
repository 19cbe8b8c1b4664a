#include "services/checkpoint/background_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include "services/checkpoint/checkpoint_folder.h"
#include "tests/services/checkpoint/scratch_directory.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

// Stops the writer at its first change until opened.
class Gate : public FaultPoints {
 public:
  absl::Status Reach(const DiskChange& change) override {
    if (change.kind == DiskChange::Kind::kCreate) opened_.wait();
    return absl::OkStatus();
  }
  void Open() { open_.set_value(); }

 private:
  std::promise<void> open_;
  std::shared_future<void> opened_ = open_.get_future().share();
};

class NoSpace : public FaultPoints {
 public:
  absl::Status Reach(const DiskChange& change) override {
    if (change.kind != DiskChange::Kind::kWrite) return absl::OkStatus();
    return FileError(ENOSPC, "write", change.path);
  }
};

// As an optimizer does: in place if nobody else has it, else anew.
void AddOne(Tensor* tensor) {
  if (!tensor->unique()) *tensor = tensor->Clone();
  for (int64_t i = 0; i < tensor->size(); ++i) tensor->f32()[i] += 1;
}

TEST(BackgroundWriterTest, WritesWhatWasWhenItWasStarted) {
  ScratchDirectory scratch;
  Gate gate;
  BackgroundWriter writer(&gate);
  Tensor weights = Tensor::Floats({3}, {1, 2, 3});
  const std::byte* const before = std::as_const(weights).raw();
  ASSERT_OK(writer.Start(7, scratch.path(), "a", {{"w", weights}}));
  EXPECT_FALSE(writer.Poll().has_value());
  // Training goes on while the writer cannot have read anything.
  AddOne(&weights);
  AddOne(&weights);
  EXPECT_NE(std::as_const(weights).raw(), before);
  EXPECT_TRUE(writer.busy());
  gate.Open();
  auto result = writer.Wait();
  ASSERT_TRUE(result.has_value());
  EXPECT_EQ(result->step, 7);
  ASSERT_OK(result->entries);
  EXPECT_FALSE(writer.busy());
  Manifest manifest;
  manifest.step = 7;
  manifest.tensors = *result->entries;
  ASSERT_OK_AND_ASSIGN(const std::string path,
                       CommitCheckpoint(scratch.path(), manifest, ""));
  ASSERT_OK_AND_ASSIGN(const auto reader, CheckpointReader::Open(path));
  ASSERT_OK_AND_ASSIGN(const Tensor written, reader->Read("w"));
  EXPECT_TRUE(TensorEqual(written, Tensor::Floats({3}, {1, 2, 3})));
  EXPECT_TRUE(TensorEqual(weights, Tensor::Floats({3}, {3, 4, 5})));
}

TEST(BackgroundWriterTest, OneIsInFlight) {
  ScratchDirectory scratch;
  Gate gate;
  BackgroundWriter writer(&gate);
  const Tensor weights = Tensor::Floats({1}, {1});
  ASSERT_OK(writer.Start(1, scratch.path(), "a", {{"w", weights}}));
  EXPECT_THAT(writer.Start(2, scratch.path(), "a", {{"w", weights}}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("step 1 is in flight")));
  gate.Open();
  ASSERT_TRUE(writer.Wait().has_value());
  EXPECT_FALSE(writer.Wait().has_value());
  EXPECT_FALSE(writer.Poll().has_value());
  ASSERT_OK(writer.Start(2, scratch.path(), "a", {{"w", weights}}));
  EXPECT_EQ(writer.Wait()->step, 2);
}

// The snapshot is let go in Wait, on the owner's thread: afterwards updates are
// in place again.
TEST(BackgroundWriterTest, KeepsTheSnapshotUntilItsResultIsTaken) {
  ScratchDirectory scratch;
  BackgroundWriter writer;
  Tensor weights = Tensor::Floats({1}, {1});
  ASSERT_OK(writer.Start(1, scratch.path(), "a", {{"w", weights}}));
  EXPECT_FALSE(weights.unique());
  ASSERT_TRUE(writer.Wait().has_value());
  EXPECT_TRUE(weights.unique());
  AddOne(&weights);  // in place, which ThreadSanitizer watches
}

TEST(BackgroundWriterTest, AnErrorReachesTheOwnerAndEndsNothing) {
  ScratchDirectory scratch;
  NoSpace faults;
  BackgroundWriter writer(&faults);
  ASSERT_OK(
      writer.Start(1, scratch.path(), "a", {{"w", Tensor::Floats({1}, {1})}}));
  auto result = writer.Wait();
  ASSERT_TRUE(result.has_value());
  EXPECT_THAT(result->entries, StatusIs(absl::StatusCode::kResourceExhausted,
                                        HasSubstr("No space left")));
  EXPECT_OK(
      writer.Start(2, scratch.path(), "a", {{"w", Tensor::Floats({1}, {1})}}));
}

TEST(BackgroundWriterTest, TheEndWaitsForTheShard) {
  ScratchDirectory scratch;
  {
    BackgroundWriter writer;
    ASSERT_OK(
        writer.Start(1, scratch.path(), "a", {{"w", RandomTensor({1000}, 1)}}));
  }
  ASSERT_OK_AND_ASSIGN(const auto names,
                       ListDirectory(PartialCheckpointPath(scratch.path(), 1)));
  EXPECT_EQ(names, std::vector<std::string>{"a.safetensors"});
}

}  // namespace
}  // namespace gshard
