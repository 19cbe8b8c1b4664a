#include "services/checkpoint/folder_claim.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/checkpoint/checkpoint.h"
#include "services/checkpoint/checkpoint_folder.h"
#include "services/checkpoint/write_shard.h"
#include "services/storage/file.h"
#include "tests/services/storage/scratch_directory.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using ::testing::_;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr auto kRefused = absl::StatusCode::kFailedPrecondition;

// Takes over a folder after removing its lock file.
absl::StatusOr<std::shared_ptr<FolderClaim>> TakeOver(const std::string& root,
                                                      const std::string& job) {
  std::filesystem::remove(root + "/owner.lock");
  return FolderClaim::Take(root, job);
}

// Paths of all entries in the folder, with the sizes of files.
std::vector<std::string> Contents(const std::string& root) {
  std::vector<std::string> contents;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(root)) {
    contents.push_back(absl::StrCat(
        entry.path().string(), " ",
        entry.is_regular_file() ? std::to_string(entry.file_size()) : "/"));
  }
  std::sort(contents.begin(), contents.end());
  return contents;
}

// Writes a job's shard; `value` identifies the job.
absl::StatusOr<Manifest> WriteClaimed(const std::string& root, int64_t step,
                                      float value, FolderClaim& claim,
                                      FaultPoints* faults) {
  Manifest manifest;
  manifest.step = step;
  ASSIGN_OR_RETURN(
      manifest.tensors,
      WriteShard({root, step, absl::StrCat(claim.tag(), "-all")},
                 {{"w", Tensor::Floats({1}, {value})}}, nullptr, faults));
  manifest.metadata = {{"job", absl::StrCat(value)}};
  return manifest;
}

absl::Status CommitAndPrune(const std::string& root, const Manifest& manifest,
                            FaultPoints* faults) {
  RETURN_IF_ERROR(CommitCheckpoint(root, manifest, "", "", faults).status());
  return PruneCheckpoints(root, {.last = 1}, faults);
}

absl::Status Write(const std::string& root, int64_t step, float value,
                   FolderClaim& claim, FaultPoints* faults) {
  ASSIGN_OR_RETURN(const Manifest manifest,
                   WriteClaimed(root, step, value, claim, faults));
  return CommitAndPrune(root, manifest, faults);
}

TEST(FolderClaimTest, AFolderHasOneOwner) {
  const ScratchDirectory scratch;
  const std::string root = scratch / "jobs/demo";
  EXPECT_OK(FolderClaim::CheckFree(root));
  ASSERT_OK_AND_ASSIGN(auto claim, FolderClaim::Take(root, "a"));
  EXPECT_OK(claim->Check());
  std::filesystem::create_symlink(root, scratch / "link");
  for (const std::string& spelled :
       {root, root + "/", scratch / "jobs/../jobs/demo", scratch / "link"}) {
    EXPECT_THAT(
        FolderClaim::Take(spelled, "b"),
        StatusIs(kRefused,
                 AllOf(HasSubstr(spelled), HasSubstr("in use by job 'a'"),
                       HasSubstr(absl::StrCat("process ", ::getpid())))));
  }
  EXPECT_OK(claim->Check());
  const std::string tag = claim->tag();
  claim = nullptr;
  ASSERT_OK_AND_ASSIGN(claim, FolderClaim::Take(root, "b"));
  ASSERT_OK_AND_ASSIGN(const auto owner, ReadOwner(root));
  ASSERT_TRUE(owner.has_value());
  EXPECT_EQ(owner->job, "b");
  EXPECT_EQ(owner->epoch, 2);
  EXPECT_NE(claim->tag(), tag);
}

TEST(FolderClaimTest, AProcessThatIsPausedKeepsItAndOneThatDiesDoesNot) {
  const ScratchDirectory scratch;
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto claim = FolderClaim::Take(scratch.path(), "a");
    ::raise(SIGSTOP);
    ::_exit(claim.ok() && (*claim)->Check().ok() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, WUNTRACED), child);
  ASSERT_TRUE(WIFSTOPPED(status));
  const auto names_it = HasSubstr(absl::StrCat("process ", child));
  EXPECT_THAT(FolderClaim::CheckFree(scratch.path()),
              StatusIs(kRefused, names_it));
  EXPECT_THAT(FolderClaim::Take(scratch.path(), "b"),
              StatusIs(kRefused, names_it));
  ::kill(child, SIGKILL);
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_OK(FolderClaim::CheckFree(scratch.path()));
  EXPECT_OK(FolderClaim::Take(scratch.path(), "b"));
}

TEST(FolderClaimTest, AFolderOfBeforeIsTaken) {
  const ScratchDirectory scratch;
  ASSERT_OK(WriteShard({scratch.path(), 1, "all"},
                       {{"w", Tensor::Floats({1}, {1})}}));
  EXPECT_OK(FolderClaim::CheckFree(scratch.path()));
  EXPECT_OK(FolderClaim::Take(scratch.path(), "a"));
}

TEST(FolderClaimTest, WhoWasReplacedChangesNothing) {
  const ScratchDirectory scratch;
  const std::string& root = scratch.path();
  ASSERT_OK_AND_ASSIGN(const auto a, FolderClaim::Take(root, "a"));
  ASSERT_OK(Write(root, 10, 1, *a, a.get()));
  ASSERT_OK(WriteClaimed(root, 20, 1, *a, a.get()));
  ASSERT_OK_AND_ASSIGN(const auto b, TakeOver(root, "b"));
  const auto before = Contents(root);
  const auto lost =
      StatusIs(kRefused, AllOf(HasSubstr("no longer that of job 'a' (epoch 1"),
                               HasSubstr("taken over by job 'b' (epoch 2")));
  EXPECT_THAT(a->Check(), lost);
  EXPECT_THAT(Write(root, 20, 1, *a, a.get()), lost);
  EXPECT_THAT(AbandonCheckpoint(root, 20, a.get()), lost);
  EXPECT_THAT(ClearAfter(root, -1, a.get()), lost);
  EXPECT_THAT(RemoveLeftovers(root, 100, a.get()), lost);
  EXPECT_EQ(Contents(root), before);
  EXPECT_OK(b->Check());
  std::filesystem::remove(OwnerPath(root));
  EXPECT_THAT(b->Check(), StatusIs(kRefused, HasSubstr("was removed")));
}

// Takes over the folder at the owner's change number `point`: before the
// owner's check, or after it, in the gap that no check can close.
class Rival : public FaultPoints {
 public:
  Rival(std::string root, FolderClaim& owner, int point, bool after_look)
      : root_(std::move(root)),
        owner_(owner),
        point_(point),
        after_look_(after_look) {}

  absl::Status Reach(const DiskChange& change) override {
    const bool now = point_-- == 0;
    if (now && !after_look_) Begin();
    const absl::Status status = owner_.Reach(change);
    if (now && after_look_) Begin();
    return status;
  }

  bool began() const { return claim_ != nullptr; }
  const std::vector<std::string>& found() const { return found_; }

  // Commits the checkpoint that Begin() has started.
  absl::Status End() { return CommitAndPrune(root_, manifest_, claim_.get()); }

 private:
  void Begin() {
    ASSERT_OK_AND_ASSIGN(claim_, TakeOver(root_, "b"));
    ASSERT_OK_AND_ASSIGN(const auto reader, LatestGoodCheckpoint(root_));
    const int64_t step = reader->manifest().step;
    ASSERT_OK(ClearAfter(root_, step, claim_.get()));
    ASSERT_OK_AND_ASSIGN(
        manifest_, WriteClaimed(root_, step + 10, 2, *claim_, claim_.get()));
    found_ = Contents(root_);
  }

  const std::string root_;
  FolderClaim& owner_;
  int point_;
  const bool after_look_;
  std::shared_ptr<FolderClaim> claim_;
  Manifest manifest_;
  std::vector<std::string> found_;
};

TEST(FolderClaimTest, WhoeverIsReplacedWheneverTheLastCheckpointIsWhole) {
  int points = 0;
  for (const bool after_look : {false, true}) {
    for (int point = 0;; ++point) {
      SCOPED_TRACE(absl::StrCat(after_look, " ", point));
      const ScratchDirectory scratch;
      const std::string& root = scratch.path();
      ASSERT_OK_AND_ASSIGN(const auto a, FolderClaim::Take(root, "a"));
      ASSERT_OK(Write(root, 10, 1, *a, a.get()));
      Rival rival(root, *a, point, after_look);
      const absl::Status status = Write(root, 20, 1, *a, &rival);
      if (!rival.began()) {
        EXPECT_OK(status);
        points = point;
        break;
      }
      if (!after_look) {
        EXPECT_EQ(Contents(root), rival.found());
      }
      // Only a takeover after the check leaves the old owner time to rename the
      // rival's shards, which fails End().
      const absl::Status ended = rival.End();
      EXPECT_TRUE(ended.ok() || after_look) << ended;
      ASSERT_OK_AND_ASSIGN(const auto reader, LatestGoodCheckpoint(root));
      ASSERT_OK_AND_ASSIGN(const Tensor w, reader->Read("w"));
      EXPECT_TRUE(*w.f32() == 2 || (*w.f32() == 1 && !ended.ok()));
      EXPECT_EQ(reader->manifest().metadata.at("job"), absl::StrCat(*w.f32()));
    }
  }
  EXPECT_GT(points, 15);
}

TEST(FolderClaimTest, ADamagedOwnerIsNamed) {
  const ScratchDirectory scratch;
  ASSERT_OK(FolderClaim::Take(scratch.path(), "a"));
  const std::string path = OwnerPath(scratch.path());
  const std::string text = Slurp(path);
  ASSERT_OK_AND_ASSIGN(const FolderOwner owner, ParseOwner(text));
  EXPECT_EQ(FormatOwner(owner), text);
  for (size_t i = 0; i < text.size(); ++i) {
    std::string damaged = text;
    damaged[i] ^= 1;
    EXPECT_THAT(ParseOwner(damaged), StatusIs(absl::StatusCode::kDataLoss, _))
        << i;
  }
  Spill(path, text.substr(0, 20));
  EXPECT_THAT(FolderClaim::Take(scratch.path(), "a"),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr(path)));
}

}  // namespace
}  // namespace gshard
