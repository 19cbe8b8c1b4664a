#include "services/coordinator/preparation/job_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/services/storage/fake_object_store.h"
#include "tests/services/storage/scratch_directory.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

class JobFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    job_.name = "demo";
    job_.checkpoint.directory = scratch_ / "out";
    for (const char* name : {"de-2", "de-10", "fr", "de[1]"}) {
      Spill(scratch_ / name, "x");
    }
  }

  void ExpectInvalid(const std::string& message) {
    EXPECT_THAT(
        FindJobFiles(&job_),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  }

  const ScratchDirectory scratch_;
  TrainingJob job_;
};

TEST_F(JobFilesTest, PatternsStandForTheirFiles) {
  job_.data.train_files = {{scratch_ / "fr", "fr", 1.0},
                           {scratch_ / "de-*", "de", 0.5}};
  job_.data.dev_files = {{scratch_ / "f?", "", 1.0}};
  ASSERT_OK(FindJobFiles(&job_));
  EXPECT_EQ(job_.data.train_files,
            (std::vector<TextFile>{{scratch_ / "fr", "fr", 1.0},
                                   {scratch_ / "de-10", "de", 0.5},
                                   {scratch_ / "de-2", "de", 0.5}}));
  EXPECT_EQ(job_.data.dev_files,
            (std::vector<TextFile>{{scratch_ / "fr", "", 1.0}}));
}

TEST_F(JobFilesTest, AFileThatIsThereIsNoPattern) {
  job_.data.train_files = {{scratch_ / "de[1]", "", 1.0}};
  ASSERT_OK(FindJobFiles(&job_));
  EXPECT_EQ(job_.data.train_files.size(), 1u);
  EXPECT_EQ(job_.data.train_files[0].path, scratch_ / "de[1]");
}

// Each of many patterns may match many files.
TEST_F(JobFilesTest, PatternsForTooManyFilesAreRefusedUnopened) {
  const std::string folder = scratch_ / "many";
  ASSERT_EQ(mkdir(folder.c_str(), 0755), 0);
  for (int i = 0; i < 200; ++i) Spill(absl::StrCat(folder, "/f", i), "x");
  ASSERT_EQ(mkdir((folder + "/unreadable").c_str(), 0755), 0);
  job_.data.train_files.assign(kMaxTextFiles / 200, {folder + "/f*", "", 1.0});
  job_.data.train_files.push_back({folder + "/*", "", 1.0});
  ExpectInvalid(
      "data.train_files[327].path: expected at most 65535 files in "
      "data.train_files, got 65601 or more");
}

TEST_F(JobFilesTest, NamesTheFieldThatFindsNothing) {
  job_.data.train_path = scratch_ / "none";
  ExpectInvalid("data.train_path: expected a readable file");
  job_.data.train_path = scratch_ / "fr";
  job_.data.dev_path = scratch_ / "none";
  ExpectInvalid("data.dev_path: expected a readable file");
  job_.data.dev_path = "";
  job_.data.train_files = {{scratch_ / "fr", "", 1.0},
                           {scratch_ / "it-*", "", 1.0}};
  ExpectInvalid("data.train_files[1].path: no file matches");
  job_.data.train_files[1].path = scratch_ / "none";
  ExpectInvalid("data.train_files[1].path: expected a readable file");
  ASSERT_EQ(mkdir((scratch_ / "it-folder").c_str(), 0755), 0);
  job_.data.train_files[1].path = scratch_ / "it-*";
  ExpectInvalid("data.train_files[1].path: expected a readable file");
}

TEST_F(JobFilesTest, NamesTheFolderThatCannotBeWritten) {
  job_.data.train_path = scratch_ / "fr";
  job_.summary_directory = scratch_ / "fr/below/a/file";
  ExpectInvalid("summary_directory: expected a folder that can be written: ");
  job_.summary_directory = scratch_ / "summaries/1";
  EXPECT_OK(FindJobFiles(&job_));
  // Nothing is made by a check.
  EXPECT_FALSE(IsDirectory(scratch_ / "summaries"));
  const std::string locked = scratch_ / "locked";
  ASSERT_EQ(mkdir(locked.c_str(), 0555), 0);
  job_.checkpoint.directory = locked + "/out/1";
  ASSERT_EQ(chmod(scratch_.path().c_str(), 0755), 0);
  // Rights do not bind root: in a process of another user.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        if (getuid() == 0 && setuid(65534) != 0) _exit(1);
        const absl::Status status = FindJobFiles(&job_);
        std::fprintf(stderr, "%s\n", status.ToString().c_str());
        _exit(absl::IsInvalidArgument(status) ? 0 : 2);
      },
      ::testing::ExitedWithCode(0),
      "checkpoint.directory: expected a folder that can be written: write in "
      ".*locked");
}

TEST_F(JobFilesTest, AVocabularyWithoutAFileCanBeTrained) {
  job_.data.train_path = scratch_ / "fr";
  job_.model.source_vocabulary_size = 63;
  ExpectInvalid(
      "model.source_vocabulary_size: expected 64 to 256000 without "
      "data.source_tokenizer_path, got 63");
  job_.data.source_tokenizer_path = scratch_ / "fr";
  EXPECT_OK(FindJobFiles(&job_));
  job_.model.target_vocabulary_size = 256001;
  ExpectInvalid(
      "model.target_vocabulary_size: expected 64 to 256000 without "
      "data.target_tokenizer_path, got 256001");
  job_.model.shared_vocabulary = true;
  job_.model.source_vocabulary_size = 256001;
  EXPECT_OK(FindJobFiles(&job_));
}

TEST_F(JobFilesTest, PatternsStandForTheObjectsOfTheirFolder) {
  FakeObjectStore store;
  store.Use();
  for (const char* key : {"text/de-2", "text/de-10", "text/fr", "de-3"}) {
    store.Set(absl::StrCat("bucket/", key), "x");
  }
  const TextFile pattern = {"s3://bucket/text/de-*", "de", 1.0};
  job_.data.train_files = {pattern};
  ASSERT_OK(FindJobFiles(&job_));
  EXPECT_EQ(job_.data.train_files,
            (std::vector<TextFile>{{"s3://bucket/text/de-10", "de", 1.0},
                                   {"s3://bucket/text/de-2", "de", 1.0}}));
  job_.data.train_files = {{"s3://bucket/text/it-*", "", 1.0}};
  ExpectInvalid("data.train_files[0].path: no file matches");
  // Many credentials permit reading objects but not listing them.
  store.SetOnRequest([](const std::string& request) {
    return absl::StrContains(request, "list-type")
               ? FakeObjectStore::Fault::kRefused
               : FakeObjectStore::Fault::kNone;
  });
  job_.data.train_files = {pattern};
  ExpectInvalid("AccessDenied");
}

TEST_F(JobFilesTest, APatternForObjectsIsOfNames) {
  FakeObjectStore store;
  store.Use();
  store.Set("bucket/de[1]/text-1", "x");
  job_.data.train_files = {{"s3://bucket/de[1]/text-*", "", 1.0}};
  ASSERT_OK(FindJobFiles(&job_));
  EXPECT_EQ(job_.data.train_files[0].path, "s3://bucket/de[1]/text-1");
  job_.data.train_files = {{"s3://bucket/de*/text-1", "", 1.0}};
  ExpectInvalid(
      "data.train_files[0].path: no file matches s3://bucket/de*/text-1: in an "
      "object store a pattern is expected in the last part only");
}

// Whoever submits the job waits for that.
TEST_F(JobFilesTest, AStoreIsAskedForManyFilesAtATime) {
  FakeObjectStore store;
  store.Use();
  for (int i = 0; i < 4; ++i) {
    store.Set(absl::StrCat("bucket/text/de-", i), "x");
  }
  std::atomic<int> under_way = 0, alone = 0;  // HEAD requests
  store.SetOnRequest([&](const std::string& request) {
    if (!absl::StartsWith(request, "HEAD bucket/text/de-") ||
        absl::StrContains(request, "*")) {
      return FakeObjectStore::Fault::kNone;
    }
    ++under_way;
    const auto end =
        std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (under_way % 4 != 0 && alone == 0) {
      std::this_thread::yield();
      if (std::chrono::steady_clock::now() > end) {
        ++alone;
        break;
      }
    }
    return FakeObjectStore::Fault::kNone;
  });
  job_.data.train_files = {{"s3://bucket/text/de-*", "", 1.0}};
  ASSERT_OK(FindJobFiles(&job_));
  ASSERT_EQ(job_.data.train_files.size(), 4u);
  EXPECT_EQ(alone, 0) << "of those that match";
  ASSERT_OK(FindJobFiles(&job_));
  EXPECT_EQ(alone, 0) << "of those that are named";
  EXPECT_EQ(TimeToIndex(job_.data), absl::Seconds(4.0 / (256 << 10)));
  EXPECT_EQ(alone, 0) << "whose sizes are asked for";
}

// Whoever submits the job may do so again, unlike after InvalidArgument.
TEST_F(JobFilesTest, AStoreThatIsAwayIsNoFaultOfTheJob) {
  FakeObjectStore store;
  store.Use();
  store.Set("bucket/text/de-2", "x");
  const auto expect_unavailable = [&](const std::string& message) {
    EXPECT_THAT(FindJobFiles(&job_),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr(message)));
  };
  store.SetOnRequest(
      [](const std::string&) { return FakeObjectStore::Fault::kSlowDown; });
  job_.data.train_path = "s3://bucket/text/de-2";
  expect_unavailable("data.train_path: expected a readable file: ");
  job_.data.train_path = "";
  job_.data.train_files = {{"s3://bucket/text/de-*", "de", 1.0}};
  expect_unavailable("data.train_files[0].path: expected a readable file: ");
  store.SetOnRequest([](const std::string& request) {
    return absl::StrContains(request, "list-type")
               ? FakeObjectStore::Fault::kSlowDown
               : FakeObjectStore::Fault::kNone;
  });
  expect_unavailable(
      "data.train_files[0].path: no file matches s3://bucket/text/de-*: ");
  job_.data.train_files = {{"s3://bucket/text/de-2", "de", 1.0}};
  job_.initialize_from = "s3://bucket/general";
  expect_unavailable("initialize_from: expected a readable checkpoint: ");
}

TEST_F(JobFilesTest, InitialWeightsMayBeInAnObjectStore) {
  FakeObjectStore store;
  store.Use();
  store.Set("bucket/general/step-00000003/manifest.json", "{}");
  job_.data.train_path = scratch_ / "fr";
  job_.initialize_from = "s3://bucket/general/step-00000003";
  ASSERT_OK(FindJobFiles(&job_));
  EXPECT_EQ(job_.initialize_from, "s3://bucket/general/step-00000003");
  job_.initialize_from = "s3://bucket/none";
  ExpectInvalid(
      "initialize_from: expected a readable checkpoint: no "
      "checkpoint in 's3://bucket/none'");
}

// Whether the checkpoint is named itself, or the folder that it is in.
TEST_F(JobFilesTest, DamageOfInitialWeightsIsNoMistakeOfTheJob) {
  job_.data.train_path = scratch_ / "fr";
  job_.initialize_from = scratch_ / "general";
  const std::string checkpoint = job_.initialize_from + "/step-00000003";
  std::filesystem::create_directories(checkpoint);
  Spill(checkpoint + "/manifest.json", "");
  EXPECT_THAT(FindJobFiles(&job_),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("initialize_from: none of 1 checkpoints")));
  std::filesystem::remove(checkpoint + "/manifest.json");
  std::filesystem::create_directory(checkpoint + "/manifest.json");
  EXPECT_THAT(FindJobFiles(&job_),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("initialize_from: open '")));
}

}  // namespace
}  // namespace gshard
