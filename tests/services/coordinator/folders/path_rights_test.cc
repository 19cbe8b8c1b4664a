#include "services/coordinator/folders/path_rights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/services/storage/scratch_directory.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

namespace fs = std::filesystem;
using ::testing::_;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr auto kDenied = absl::StatusCode::kPermissionDenied;

// Folders data/team-a and data/team-b, and links between them.
class PathRightsTest : public ::testing::Test {
 protected:
  PathRightsTest() {
    fs::create_directories(scratch_ / "data/team-a/runs");
    fs::create_directories(scratch_ / "data/team-b");
    Spill(scratch_ / "data/team-a/train.tsv", "a");
    Spill(scratch_ / "data/team-b/train.tsv", "b");
    fs::create_symlink(scratch_ / "data/team-b", scratch_ / "data/team-a/exit");
    fs::create_symlink(scratch_ / "data", scratch_ / "mount");
  }

  std::string At(const std::string& path) const {
    return fs::canonical(scratch_.path()).string() + "/" + path;
  }
  Caller TeamA() const { return {"a", {{Role::kTrain, At("mount/team-a/")}}}; }
  TrainingJob Job() const {
    TrainingJob job;
    job.data.train_path = At("data/team-a/train.tsv");
    job.checkpoint.directory = At("data/team-a/runs/1");
    return job;
  }

  const ScratchDirectory scratch_;
};

TEST_F(PathRightsTest, AdmitsWhatLiesInTheFolders) {
  TrainingJob job = Job();
  job.checkpoint.directory = At("mount/team-a/exit/../team-a/runs/2/");
  job.data.train_files.emplace_back().path = At("data/team-a/new/../train.tsv");
  ASSERT_OK(PathRights({At("mount")}).Admit(TeamA(), &job));
  EXPECT_EQ(job.checkpoint.directory, At("data/team-a/runs/2"));
  EXPECT_EQ(job.data.train_files[0].path, At("data/team-a/train.tsv"));
  EXPECT_EQ(job.summary_directory, "");
}

// No path of a job leads out of its caller's folders or the data roots.
TEST_F(PathRightsTest, NothingLeadsOut) {
  for (const std::string& out :
       {At("data/team-b/train.tsv"), At("data/team-a/exit/train.tsv"),
        At("data/team-a/exit"), At("data/team-a/exit/new/run"),
        At("data/team-a/../team-b/x"), At("data/team-a/new/../../team-b"),
        At("mount/team-b"), At("data/team-ab"), At("data"),
        std::string("/etc/passwd"), std::string("/")}) {
    TrainingJob job = Job();
    job.data.train_files.resize(1);
    job.data.dev_files.resize(1);
    const size_t paths = PathsOf(&job).size();
    for (size_t i = 0; i < paths; ++i) {
      TrainingJob bad = job;
      const auto [field, path] = PathsOf(&bad)[i];
      *path = out;
      EXPECT_THAT(
          PathRights().Admit(TeamA(), &bad),
          StatusIs(kDenied, AllOf(StartsWith(field + ": '" + out + "'"),
                                  HasSubstr("may train"), HasSubstr("team-a"))))
          << i;
      bad = job;
      *PathsOf(&bad)[i].second = out;
      EXPECT_THAT(
          PathRights({At("data/team-a")}).Admit({"all", AllGrants()}, &bad),
          StatusIs(kDenied, AllOf(StartsWith(field + ": '" + out + "'"),
                                  HasSubstr("--data_roots"))))
          << i;
    }
  }
}

TEST_F(PathRightsTest, WithoutRootsPathsLeadAnywhere) {
  std::string path = At("data/team-a/exit");
  EXPECT_OK(PathRights().Admit(&path));
  EXPECT_EQ(path, At("data/team-b"));
  // A root that cannot be resolved contains nothing.
  fs::create_symlink("loop", scratch_ / "loop");
  EXPECT_FALSE(PathRights({At("loop")}).Admit(&path).ok());
  path = At("loop/x");
  EXPECT_FALSE(PathRights({At("loop")}).Admit(&path).ok());
  EXPECT_FALSE(MayTrainIn(ResolveFolders({"a", {{Role::kTrain, At("loop")}}}),
                          At("data")));
}

// A folder that cannot be resolved, such as one on an unmounted disk, gives
// UNAVAILABLE instead of a denial.
TEST_F(PathRightsTest, WhatCannotBeResolvedIsNoDenial) {
  fs::create_symlink("loop", scratch_ / "loop");
  const auto unknown =
      StatusIs(absl::StatusCode::kUnavailable,
               AllOf(HasSubstr("cannot be told"), HasSubstr(At("loop"))));
  std::string path = At("data/team-a");
  EXPECT_THAT(PathRights({At("loop")}).Admit(&path), unknown);
  EXPECT_OK(PathRights({At("loop"), At("data")}).Admit(&path));
  TrainingJob job = Job();
  const Caller away = {"a", {{Role::kTrain, At("loop")}}};
  EXPECT_THAT(PathRights().Admit(away, &job), unknown);
  EXPECT_THAT(std::string(PathRights().Admit(away, &job).message()),
              StartsWith("data.train_path: "));
  const Caller both = {
      "a", {{Role::kTrain, At("loop")}, {Role::kTrain, At("data")}}};
  EXPECT_OK(PathRights().Admit(both, &job));
  const PathRights closed({}, [](absl::string_view path) {
    return absl::PermissionDeniedError(absl::StrCat("resolve ", path));
  });
  EXPECT_THAT(closed.Admit(&path), StatusIs(absl::StatusCode::kInvalidArgument,
                                            HasSubstr("team-a")));
  job = Job();
  EXPECT_THAT(closed.Admit(both, &job),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(StartsWith("data.train_path: '"),
                             HasSubstr("may look into: resolve "))));
}

TEST_F(PathRightsTest, JobsAreFollowedByTheirTeams) {
  TrainingJob job = Job();
  job.data.dev_path = At("data/team-a/dev.tsv");
  job.initialize_from = At("data/team-a/runs/0");
  const JobOwnership ownership = OwnershipOf("x", job);
  EXPECT_THAT(ownership.folders,
              ElementsAre(At("data/team-a"), At("data/team-a/runs/0"),
                          At("data/team-a/runs/1")));
  const auto may = [&](const std::string& name, const Grants& grants) {
    return MayFollow(ResolveFolders({name, grants}), ownership);
  };
  EXPECT_TRUE(may("a", TeamA().grants));
  EXPECT_TRUE(may("x", {{Role::kTrain, At("data/team-b")}}));
  EXPECT_TRUE(may("ops", {{Role::kTrain}}));
  EXPECT_TRUE(may("shop", {{Role::kTranslate}}));
  EXPECT_FALSE(may("b", {{Role::kTrain, At("data/team-b")}}));
  EXPECT_FALSE(may("a", {{Role::kTrain, At("data/team-a/runs")}}));
  EXPECT_FALSE(may("shop", {{Role::kTranslate, "titles-*"}}));
  EXPECT_THAT(
      CheckFollow({"b", {{Role::kTrain, At("data/team-b")}}}, ownership, "j"),
      StatusIs(kDenied, HasSubstr("job 'j' is another caller's")));
}

}  // namespace
}  // namespace gshard
