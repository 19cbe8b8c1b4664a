#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "services/checkpoint/checkpoint.h"
#include "services/checkpoint/checkpoint_folder.h"
#include "services/storage/file.h"
#include "tests/services/checkpoint/checkpoint_samples.h"
#include "tests/services/storage/disk_faults.h"
#include "tests/services/storage/scratch_directory.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// In memory if possible: these tests sync thousands of times and simulate data
// loss themselves.
std::string FastParent() {
  return ::access("/dev/shm", W_OK) == 0 ? "/dev/shm/" : ::testing::TempDir();
}

// A job's full checkpoint cycle, from the first shard to the removal of the
// previous checkpoint.
absl::Status WriteAndPrune(const std::string& root, int64_t step,
                           FaultPoints* faults = nullptr) {
  RETURN_IF_ERROR(WriteCheckpoint(root, step, 2, faults).status());
  return PruneCheckpoints(root, {.last = 1}, faults);
}

// Number of disk changes in WriteAndPrune() with an older checkpoint present.
int CountPoints() {
  ScratchDirectory scratch(FastParent());
  FullDisk counter(1 << 30);
  EXPECT_OK(WriteAndPrune(scratch.path(), 10));
  EXPECT_OK(WriteAndPrune(scratch.path(), 20, &counter));
  return counter.count();
}

// Either the old or the new checkpoint is present and complete. The job can
// resume from it, which removes what the crash left.
void ExpectOldOrNew(const ScratchDirectory& scratch) {
  const std::string& root = scratch.path();
  ASSERT_OK_AND_ASSIGN(const auto reader, LatestGoodCheckpoint(root));
  const int64_t step = reader->manifest().step;
  EXPECT_TRUE(step == 10 || step == 20) << step;
  EXPECT_TRUE(HoldsItsStep(*reader));
  // Everything that a reader accepts as a checkpoint is complete.
  ASSERT_OK_AND_ASSIGN(const auto all, ListCheckpoints(root));
  for (const std::string& path : all) {
    ASSERT_OK_AND_ASSIGN(const auto other, CheckpointReader::Open(path));
    EXPECT_TRUE(HoldsItsStep(*other));
  }
  ASSERT_OK(ClearAfter(root, step));
  ASSERT_OK(WriteAndPrune(root, step + 10));
  ASSERT_OK_AND_ASSIGN(const auto names, ListDirectory(root));
  EXPECT_THAT(names, ElementsAre(absl::StrCat("step-000000", step + 10)));
  ASSERT_OK_AND_ASSIGN(const auto next,
                       CheckpointReader::Open(CheckpointPath(root, step + 10)));
  EXPECT_TRUE(HoldsItsStep(*next));
}

// Crash safety relies on this order: data is synced before it is renamed,
// shards precede the manifest, and the directory's rename comes last.
TEST(FaultsTest, SyncsBeforeItNames) {
  ScratchDirectory scratch(FastParent());
  ChangeRecorder recorder(scratch.path());
  ASSERT_OK_AND_ASSIGN(const auto writer,
                       CheckpointWriter::Create(scratch / "jobs", 5, "all",
                                                {DenseSpec()}, &recorder));
  ASSERT_OK(writer->Write("dense", DenseWeight(5)));
  ASSERT_OK_AND_ASSIGN(const auto entries, writer->Finish());
  ASSERT_OK(CommitCheckpoint(scratch / "jobs", ManifestOf(5, entries), "pieces",
                             "", &recorder));
  const std::string p = "jobs/step-00000005.partial";
  EXPECT_THAT(
      recorder.lines(),
      ElementsAre(
          "mkdir jobs", "syncdir .", "mkdir " + p, "syncdir jobs",
          "create " + p + "/all.safetensors.tmp",
          "write " + p + "/all.safetensors.tmp",
          "write " + p + "/all.safetensors.tmp",
          "sync " + p + "/all.safetensors.tmp",
          "rename " + p + "/all.safetensors.tmp " + p + "/all.safetensors",
          "syncdir " + p, "create " + p + "/tokenizer.model.tmp",
          "write " + p + "/tokenizer.model.tmp",
          "sync " + p + "/tokenizer.model.tmp",
          "rename " + p + "/tokenizer.model.tmp " + p + "/tokenizer.model",
          "syncdir " + p, "create " + p + "/manifest.json.tmp",
          "write " + p + "/manifest.json.tmp",
          "sync " + p + "/manifest.json.tmp",
          "rename " + p + "/manifest.json.tmp " + p + "/manifest.json",
          "syncdir " + p, "rename " + p + " jobs/step-00000005",
          "syncdir jobs"));
}

TEST(FaultsTest, AProcessThatDiesAnywhereLeavesTheOldOrTheNew) {
  const int points = CountPoints();
  EXPECT_GT(points, 40);
  for (int point = 0; point < points; ++point) {
    SCOPED_TRACE(point);
    ScratchDirectory scratch(FastParent());
    ASSERT_OK(WriteAndPrune(scratch.path(), 10));
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      DeadProcess faults(point);
      WriteAndPrune(scratch.path(), 20, &faults).IgnoreError();
      ::_exit(1);  // not reached
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    ExpectOldOrNew(scratch);
  }
}

TEST(FaultsTest, PowerThatGoesAnywhereLeavesTheOldOrTheNew) {
  const int points = CountPoints();
  for (const auto keeps :
       {PowerLoss::Keeps::kNothing, PowerLoss::Keeps::kNames}) {
    int old_ones = 0;
    for (int point = 0; point <= points; ++point) {
      SCOPED_TRACE(absl::StrCat(static_cast<int>(keeps), ", ", point));
      ScratchDirectory scratch(FastParent()), attic(FastParent());
      ASSERT_OK(WriteAndPrune(scratch.path(), 10));
      PowerLoss faults(point, keeps, attic.path());
      const absl::Status status = WriteAndPrune(scratch.path(), 20, &faults);
      EXPECT_EQ(status.ok(), point == points) << status;
      faults.Lose();
      ASSERT_OK_AND_ASSIGN(const auto latest,
                           LatestGoodCheckpoint(scratch.path()));
      old_ones += latest->manifest().step == 10;
      // A checkpoint reported as written survives the power loss.
      if (point == points) {
        EXPECT_EQ(latest->manifest().step, 20);
      }
      ExpectOldOrNew(scratch);
    }
    EXPECT_GT(old_ones, 20);  // the simulation does lose something
    EXPECT_LT(old_ones, points);
  }
}

TEST(FaultsTest, ADiskThatIsFullFromAnyPointLeavesTheOldOrTheNew) {
  const int points = CountPoints();
  for (int point = 0; point < points; ++point) {
    SCOPED_TRACE(point);
    ScratchDirectory scratch(FastParent());
    ASSERT_OK(WriteAndPrune(scratch.path(), 10));
    FullDisk faults(point);
    const absl::Status status = WriteAndPrune(scratch.path(), 20, &faults);
    if (!status.ok()) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted,
                                   HasSubstr("No space left")));
    }
    // The writers remove half-written files themselves, before any cleanup, so
    // that these do not keep the disk full.
    ASSERT_OK_AND_ASSIGN(const auto folders, ListDirectory(scratch.path()));
    for (const std::string& folder : folders) {
      ASSERT_OK_AND_ASSIGN(const auto files, ListDirectory(scratch / folder));
      for (const std::string& file : files) {
        EXPECT_FALSE(absl::EndsWith(file, ".tmp")) << folder << "/" << file;
      }
    }
    ASSERT_OK(AbandonCheckpoint(scratch.path(), 20, &faults));
    EXPECT_FALSE(IsDirectory(PartialCheckpointPath(scratch.path(), 20)));
    ExpectOldOrNew(scratch);
  }
}

// A suspended worker, declared dead, resumes in the middle of a shard while
// another worker writes the same one. It fails, and the other's shard is
// intact.
TEST(FaultsTest, AWriterThatWakesUpDisturbsNoOther) {
  ScratchDirectory scratch(FastParent());
  const auto create = [&] {
    return CheckpointWriter::Create(scratch.path(), 3, "worker-0",
                                    {ExpertSpec(0)});
  };
  ASSERT_OK_AND_ASSIGN(const auto sleeper, create());
  ASSERT_OK_AND_ASSIGN(const auto writer, create());
  ASSERT_OK(writer->Write(ExpertName(0), ExpertWeight(0, 3)));
  ASSERT_OK(sleeper->Write(ExpertName(0), ExpertWeight(0, 99)));
  EXPECT_THAT(sleeper->Finish(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("worker-0")));
  ASSERT_OK_AND_ASSIGN(const auto entries, writer->Finish());
  Manifest manifest;
  manifest.step = 3;
  manifest.tensors = entries;
  ASSERT_OK_AND_ASSIGN(const std::string path,
                       CommitCheckpoint(scratch.path(), manifest, ""));
  ASSERT_OK_AND_ASSIGN(const auto reader, CheckpointReader::Open(path));
  EXPECT_OK(reader->Verify());
}

// A full disk, simulated by a file-size limit, leaves the old checkpoint.
TEST(FaultsTest, AFullDiskIsResourceExhaustedAndLeavesTheOldOne) {
  ScratchDirectory scratch;
  ASSERT_OK_AND_ASSIGN(const std::string old,
                       WriteCheckpoint(scratch.path(), 1, 1));
  ASSERT_NE(::signal(SIGXFSZ, SIG_IGN), SIG_ERR);
  rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 4096;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  absl::Status written;
  {
    auto writer = CheckpointWriter::Create(
        scratch.path(), 2, "big", {{"x", ElementType::kFloat32, {4096}}});
    written = writer.ok() ? (*writer)->Write("x", RandomTensor({4096}, 1))
                          : writer.status();
  }
  Manifest manifest;
  manifest.step = 3;
  manifest.model_config = std::string(8192, 'x');
  const absl::Status committed =
      CommitCheckpoint(scratch.path(), manifest, "").status();
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_THAT(written, StatusIs(absl::StatusCode::kResourceExhausted,
                                HasSubstr("big.safetensors")));
  EXPECT_THAT(committed, StatusIs(absl::StatusCode::kResourceExhausted,
                                  HasSubstr("manifest.json")));
  ASSERT_OK_AND_ASSIGN(const std::string latest,
                       LatestCheckpoint(scratch.path()));
  EXPECT_EQ(latest, old);
  ASSERT_OK(CommitCheckpoint(scratch.path(), manifest, ""));  // room again
}

}  // namespace
}  // namespace gshard
