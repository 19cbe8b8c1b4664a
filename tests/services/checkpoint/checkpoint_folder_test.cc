#include "services/checkpoint/checkpoint_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "services/checkpoint/checkpoint_folder.h"
#include "services/storage/file.h"
#include "tests/services/checkpoint/checkpoint_samples.h"
#include "tests/services/storage/scratch_directory.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(CheckpointFolderTest, LatestIsTheNewestThatOpens) {
  ScratchDirectory scratch;
  ASSERT_OK(WriteCheckpoint(scratch.path(), 9, 1));
  ASSERT_OK(WriteCheckpoint(scratch.path(), 100000000, 1));  // nine digits
  ASSERT_OK(WriteCheckpoint(scratch.path(), 10, 1));
  Spill(scratch / "step-00000099", "a file");
  Spill(scratch / "step-x", "");
  ASSERT_OK(MakeDirectories(scratch / "step-00000500.partial"));
  Spill(scratch / "step-100000000/router.safetensors", "");
  ASSERT_OK_AND_ASSIGN(const std::string latest,
                       LatestCheckpoint(scratch.path()));
  EXPECT_EQ(latest, scratch / "step-00000010");
  Spill(scratch / "step-00000010/manifest.json", "");
  Spill(scratch / "step-00000009/manifest.json", "{}");
  EXPECT_THAT(LatestCheckpoint(scratch.path()),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("none of 3 checkpoints")));
  EXPECT_THAT(LatestCheckpoint(scratch / "none"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("none")));
}

TEST(CheckpointFolderTest, LatestGoodReadsEverything) {
  ScratchDirectory scratch;
  for (const int64_t step : {1, 2, 3, 4}) {
    ASSERT_OK(WriteCheckpoint(scratch.path(), step, 2));
  }
  // Damages elements, which only a full read finds.
  const std::string shard = scratch / "step-00000004/worker-0.safetensors";
  Poke(shard, Slurp(shard).size() - 2, '?');
  ASSERT_OK(RemoveTree(scratch / "step-00000003/router.safetensors"));
  ASSERT_OK_AND_ASSIGN(const std::string latest,
                       LatestCheckpoint(scratch.path()));
  EXPECT_EQ(latest, scratch / "step-00000004");
  ::testing::internal::CaptureStderr();
  const auto good = LatestGoodCheckpoint(scratch.path());
  const std::string log = ::testing::internal::GetCapturedStderr();
  ASSERT_OK(good);
  EXPECT_EQ((*good)->path(), scratch / "step-00000002");
  EXPECT_TRUE(HoldsItsStep(**good));
  EXPECT_THAT(
      log,
      AllOf(HasSubstr("WARNING"), HasSubstr("DAMAGED CHECKPOINT PASSED OVER"),
            HasSubstr("worker-0.safetensors"), HasSubstr("tensor 'moe_0/wi/6'"),
            HasSubstr("step-00000003/router.safetensors")));
}

// Only damage makes a reader fall back to older weights. A reader that is too
// old, or lacks permission, must fail instead.
TEST(CheckpointFolderTest, OnlyDamageIsPassedOver) {
  ScratchDirectory scratch;
  ASSERT_OK(WriteCheckpoint(scratch.path(), 1, 1));
  ASSERT_OK_AND_ASSIGN(const std::string path,
                       WriteCheckpoint(scratch.path(), 2, 1));
  ASSERT_OK(RemoveTree(path + "/router.safetensors"));
  ASSERT_OK(MakeDirectories(path + "/router.safetensors"));
  EXPECT_THAT(LatestGoodCheckpoint(scratch.path()),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("not a regular file")));
  EXPECT_THAT(PruneCheckpoints(scratch.path(), {.last = 1}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("not a regular file")));
}

absl::StatusOr<std::string> WriteWithLoss(const std::string& root, int64_t step,
                                          double loss) {
  ASSIGN_OR_RETURN(const auto entries, WriteShards(root, step, 1));
  Manifest manifest = ManifestOf(step, entries);
  manifest.validation_loss = loss;
  return CommitCheckpoint(root, manifest, "pieces");
}

TEST(CheckpointFolderTest, KeepsTheLastAndTheBest) {
  ScratchDirectory scratch;
  ASSERT_OK(WriteWithLoss(scratch.path(), 1, 3.0));
  ASSERT_OK(WriteWithLoss(scratch.path(), 2, 1.5));
  ASSERT_OK(WriteCheckpoint(scratch.path(), 3, 1));  // no validation loss
  ASSERT_OK(WriteWithLoss(scratch.path(), 4, 1.5));
  ASSERT_OK(WriteWithLoss(scratch.path(), 5, 1.25));
  ASSERT_OK(WriteWithLoss(scratch.path(), 6, 2.0));
  ASSERT_OK(WriteWithLoss(scratch.path(), 7, 2.5));
  ASSERT_OK(PruneCheckpoints(scratch.path(), {.last = 2, .best = 2}));
  ASSERT_OK_AND_ASSIGN(const auto names, ListDirectory(scratch.path()));
  EXPECT_THAT(names, ElementsAre("step-00000002", "step-00000005",
                                 "step-00000006", "step-00000007"));
  ASSERT_OK_AND_ASSIGN(const std::string best, BestCheckpoint(scratch.path()));
  EXPECT_EQ(best, scratch / "step-00000005");
  EXPECT_THAT(
      BestCheckpoint(scratch / "none"),
      StatusIs(absl::StatusCode::kNotFound, HasSubstr("validation loss")));
}

TEST(CheckpointFolderTest, KeepsWhatIsPinned) {
  ScratchDirectory scratch;
  for (const int64_t step : {1, 2, 3, 4}) {
    ASSERT_OK(WriteCheckpoint(scratch.path(), step, 1));
  }
  ASSERT_OK(PruneCheckpoints(
      scratch.path(),
      {.last = 1,
       .pinned = {scratch / "./step-00000002/", scratch / "none", "/", ""}}));
  ASSERT_OK_AND_ASSIGN(const auto names, ListDirectory(scratch.path()));
  EXPECT_THAT(names, ElementsAre("step-00000002", "step-00000004"));
}

TEST(CheckpointFolderTest, FindsTheNewestUpToAStep) {
  ScratchDirectory scratch;
  for (const int64_t step : {9, 10, 100000000}) {
    ASSERT_OK(WriteCheckpoint(scratch.path(), step, 1));
  }
  const auto none =
      StatusIs(absl::StatusCode::kNotFound, HasSubstr("of step 8 or before"));
  EXPECT_EQ(*CheckpointUpTo(scratch.path(), 10), scratch / "step-00000010");
  EXPECT_EQ(*CheckpointUpTo(scratch.path(), 99), scratch / "step-00000010");
  EXPECT_THAT(CheckpointUpTo(scratch.path(), 8), none);
  EXPECT_THAT(CheckpointUpTo(scratch / "none", 8), none);
  Spill(scratch / "step-00000010/manifest.json", "");
  EXPECT_EQ(*CheckpointUpTo(scratch.path(), 99), scratch / "step-00000009");
}

TEST(CheckpointFolderTest, DamagedOnesAreNotCountedAsKept) {
  ScratchDirectory scratch;
  for (const int64_t step : {1, 2, 3, 4}) {
    ASSERT_OK(WriteCheckpoint(scratch.path(), step, 1));
  }
  for (const char* step : {"1", "3", "4"}) {
    Spill(scratch / absl::StrCat("step-0000000", step, "/manifest.json"), "");
  }
  ASSERT_OK(PruneCheckpoints(scratch.path(), {.last = 1}));
  ASSERT_OK_AND_ASSIGN(const auto names, ListDirectory(scratch.path()));
  EXPECT_THAT(names,
              ElementsAre("step-00000002", "step-00000003", "step-00000004"));
}

TEST(CheckpointFolderTest, ARemovedCheckpointCanBeReadToItsEnd) {
  ScratchDirectory scratch;
  ASSERT_OK_AND_ASSIGN(const std::string old,
                       WriteCheckpoint(scratch.path(), 1, 3));
  ASSERT_OK_AND_ASSIGN(const auto reader, CheckpointReader::Open(old));
  ASSERT_OK(WriteCheckpoint(scratch.path(), 2, 3));
  ASSERT_OK(PruneCheckpoints(scratch.path(), {.last = 1}));
  EXPECT_FALSE(IsDirectory(old));
  EXPECT_TRUE(HoldsItsStep(*reader));
  EXPECT_OK(reader->Verify());
}

// A checkpoint may be a link to one kept elsewhere, which is not the job's.
TEST(CheckpointFolderTest, OfALinkedCheckpointOnlyTheLinkIsRemoved) {
  ScratchDirectory scratch, elsewhere;
  ASSERT_OK_AND_ASSIGN(const std::string target,
                       WriteCheckpoint(elsewhere.path(), 1, 1));
  std::filesystem::create_directory_symlink(target, scratch / "step-00000001");
  ASSERT_OK(WriteCheckpoint(scratch.path(), 2, 1));
  ASSERT_OK(PruneCheckpoints(scratch.path(), {.last = 1}));
  ASSERT_OK_AND_ASSIGN(const auto names, ListDirectory(scratch.path()));
  EXPECT_THAT(names, ElementsAre("step-00000002"));
  ASSERT_OK_AND_ASSIGN(const auto kept, CheckpointReader::Open(target));
  EXPECT_OK(kept->Verify());
}

// Its disk may be mounted later: it is not passed over for an older one.
TEST(CheckpointFolderTest, ALinkToNothingIsNoAbsentCheckpoint) {
  ScratchDirectory scratch;
  ASSERT_OK(WriteCheckpoint(scratch.path(), 1, 1));
  std::filesystem::create_symlink("away", scratch / "latest");
  EXPECT_OK(OpenLatestCheckpoint(scratch.path()));
  std::filesystem::create_symlink("away", scratch / "step-00000002");
  const auto is_refused = StatusIs(absl::StatusCode::kUnavailable,
                                   HasSubstr(scratch / "step-00000002"));
  EXPECT_THAT(OpenLatestCheckpoint(scratch.path()), is_refused);
  EXPECT_THAT(WriteCheckpoint(scratch.path(), 2, 1), is_refused);
}

TEST(CheckpointFolderTest, ClearAfterMakesRoomForTheStepsThatFollow) {
  ScratchDirectory scratch;
  for (const int64_t step : {1, 2, 3}) {
    ASSERT_OK(WriteCheckpoint(scratch.path(), step, 1));
  }
  ASSERT_OK(WriteShards(scratch.path(), 4, 2));
  ASSERT_OK(MakeDirectories(scratch / "step-00000000.removed"));
  ASSERT_OK(MakeDirectories(scratch / "step-00000002.damaged/old"));
  ASSERT_OK(ClearAfter(scratch.path(), 1));
  ASSERT_OK_AND_ASSIGN(auto names, ListDirectory(scratch.path()));
  EXPECT_THAT(names, ElementsAre("step-00000001", "step-00000002.damaged",
                                 "step-00000003.damaged"));
  // Pruning removes damaged checkpoints older than all that it keeps.
  for (const int64_t step : {2, 3}) {
    ASSERT_OK(WriteCheckpoint(scratch.path(), step, 1));
  }
  ASSERT_OK(PruneCheckpoints(scratch.path(), {.last = 1}));
  ASSERT_OK_AND_ASSIGN(names, ListDirectory(scratch.path()));
  EXPECT_THAT(names, ElementsAre("step-00000003", "step-00000003.damaged"));
}

TEST(CheckpointFolderTest, CommitClearsWhatDeadWritersLeft) {
  ScratchDirectory scratch;
  ASSERT_OK(WriteShards(scratch.path(), 1, 2));
  ASSERT_OK(WriteShards(scratch.path(), 9, 2));
  ASSERT_OK(MakeDirectories(scratch / "step-00000000.removed"));
  ASSERT_OK(WriteCheckpoint(scratch.path(), 5, 1));
  ASSERT_OK_AND_ASSIGN(const auto names, ListDirectory(scratch.path()));
  EXPECT_THAT(names, ElementsAre("step-00000005", "step-00000009.partial"));
}

TEST(CheckpointFolderTest, RefusesPoliciesThatKeepNothing) {
  ScratchDirectory scratch;
  EXPECT_THAT(
      PruneCheckpoints(scratch.path(), {.last = 0}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("got 0 and 0")));
  EXPECT_THAT(
      PruneCheckpoints(scratch.path(), {.last = 1, .best = -1}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("got 1 and -1")));
}

}  // namespace
}  // namespace gshard
