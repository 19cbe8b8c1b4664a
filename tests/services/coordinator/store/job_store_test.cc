#include "services/coordinator/store/job_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/services/storage/scratch_directory.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::AllOf;
using ::testing::Conditional;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

StoredJob MakeStored(const std::string& name, int64_t time) {
  StoredJob stored;
  stored.job.name = name;
  stored.job.data.train_path = "/data/train.tsv";
  stored.job.checkpoint.directory = "/checkpoints/" + name;
  stored.submitted_micros = time;
  stored.progress.set_job(name);
  stored.progress.set_state(v1::JOB_STATE_QUEUED);
  return stored;
}

std::vector<std::string> Names(const std::vector<StoredJob>& jobs) {
  std::vector<std::string> names;
  for (const StoredJob& job : jobs) names.push_back(job.job.name);
  return names;
}

TEST(JobStoreTest, SaysThatThereWasNone) {
  const ScratchDirectory scratch;
  for (const bool first : {true, false}) {
    ::testing::internal::CaptureStderr();
    EXPECT_OK(JobStore::Open(scratch / "state"));
    const auto says = HasSubstr("no earlier state");
    const std::string log = ::testing::internal::GetCapturedStderr();
    EXPECT_THAT(log, Conditional(first, says, Not(says)));
  }
}

TEST(JobStoreTest, KeepsJobsInOrderWithTheirHistory) {
  const ScratchDirectory scratch;
  {
    ASSERT_OK_AND_ASSIGN(const auto store, JobStore::Open(scratch / "state"));
    ASSERT_OK(store->Submit(MakeStored("z", 1)));
    ASSERT_OK(store->Submit(MakeStored("a", 2)));
    v1::JobProgress progress = MakeStored("z", 1).progress;
    progress.set_state(v1::JOB_STATE_FAILED);
    progress.set_attempt(3);
    progress.set_step(40);
    progress.mutable_status()->set_message("disk full");
    ASSERT_OK(store->Update(progress, 5));
    progress.set_step(41);
    ASSERT_OK(store->Update(progress, -1));  // no entry in the history
  }
  ASSERT_OK_AND_ASSIGN(const auto store, JobStore::Open(scratch / "state"));
  ASSERT_OK_AND_ASSIGN(std::vector<StoredJob> jobs, store->Jobs());
  EXPECT_THAT(Names(jobs), ElementsAre("z", "a"));
  EXPECT_EQ(jobs[0].job, MakeStored("z", 1).job);
  EXPECT_EQ(jobs[0].progress.step(), 41);
  EXPECT_EQ(jobs[0].progress.state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(jobs[1].submitted_micros, 2);
  ASSERT_OK_AND_ASSIGN(const auto history, store->History("z"));
  ASSERT_EQ(history.size(), 2u);
  EXPECT_EQ(history[0].state(), v1::JOB_STATE_QUEUED);
  EXPECT_EQ(history[0].unix_micros(), 1);
  EXPECT_EQ(history[1].state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(history[1].unix_micros(), 5);
  EXPECT_EQ(history[1].attempt(), 3);
  EXPECT_EQ(history[1].step(), 40);
  EXPECT_EQ(history[1].cause().message(), "disk full");

  // A resubmitted job is the last in the queue and keeps its history.
  StoredJob again = MakeStored("z", 9);
  again.resume = true;
  ASSERT_OK(store->Submit(again));
  ASSERT_OK_AND_ASSIGN(jobs, store->Jobs());
  EXPECT_THAT(Names(jobs), ElementsAre("a", "z"));
  EXPECT_TRUE(jobs[1].resume);
  ASSERT_OK_AND_ASSIGN(const auto longer, store->History("z"));
  EXPECT_EQ(longer.size(), 3u);
  EXPECT_THAT(*store->History("unknown"), IsEmpty());
}

// A job with too many files is refused, because it could not be read back.
TEST(JobStoreTest, RefusesAJobOfTooManyFiles) {
  const ScratchDirectory scratch;
  ASSERT_OK_AND_ASSIGN(auto store, JobStore::Open(scratch / "state"));
  StoredJob job = MakeStored("big", 1);
  TextFile file;
  file.path = "/" + std::string(100, 'x');
  job.job.data.train_files.assign(20'000, file);
  EXPECT_THAT(store->Submit(job), StatusIs(absl::StatusCode::kResourceExhausted,
                                           HasSubstr("20000 files")));
  job.job.data.train_files.resize(5'000);
  ASSERT_OK(store->Submit(job));
  store = nullptr;
  ASSERT_OK_AND_ASSIGN(store, JobStore::Open(scratch / "state"));
  ASSERT_OK_AND_ASSIGN(const auto jobs, store->Jobs());
  EXPECT_EQ(jobs.at(0).job, job.job);
}

TEST(JobStoreTest, KeepsOneModelOfAName) {
  const ScratchDirectory scratch;
  ASSERT_OK_AND_ASSIGN(auto store, JobStore::Open(scratch / "state"));
  ASSERT_OK(store->PutModel({{"m", "/a"}}));
  ASSERT_OK(store->PutModel({{"b", "/b", "1"}}));
  const StoredModel other{{"m", "/c", "2", 3, ComputeType::kInt8}};
  ASSERT_OK(store->PutModel(other, StoredModel{{"m", "/a"}}));
  ASSERT_OK(store->PutModel(other));  // unchanged
  ASSERT_OK(store->RemoveModel("b", "another"));
  EXPECT_EQ(store->Models()->size(), 2u);
  ASSERT_OK(store->RemoveModel("b", ""));
  store = nullptr;
  ASSERT_OK_AND_ASSIGN(store, JobStore::Open(scratch / "state"));
  ASSERT_OK_AND_ASSIGN(const std::vector<StoredModel> models, store->Models());
  EXPECT_THAT(models, ElementsAre(other));
  ASSERT_OK_AND_ASSIGN(const auto previous, store->PreviousModels());
  EXPECT_THAT(previous, ElementsAre(StoredModel{{"m", "/a"}}));
}

TEST(JobStoreTest, OneProcessHasIt) {
  const ScratchDirectory scratch;
  ASSERT_OK_AND_ASSIGN(const auto store, JobStore::Open(scratch / "state"));
  EXPECT_THAT(JobStore::Open(scratch / "state"),
              StatusIs(absl::StatusCode::kAborted,
                       AllOf(HasSubstr("coordinator.db"),
                             HasSubstr("another coordinator"))));
}

TEST(JobStoreTest, ADamagedFileIsAClearError) {
  const ScratchDirectory scratch;
  const std::string path = scratch / "state/coordinator.db";
  {
    ASSERT_OK_AND_ASSIGN(const auto store, JobStore::Open(scratch / "state"));
    ASSERT_OK(store->Submit(MakeStored("a", 1)));
  }
  const std::string good = Slurp(path);
  for (const std::string& bad :
       {std::string("not a database at all") + good.substr(21),
        good.substr(0, 4096) + std::string(good.size() - 4096, 'x')}) {
    Spill(path, bad);
    EXPECT_THAT(JobStore::Open(scratch / "state"),
                StatusIs(absl::StatusCode::kDataLoss,
                         AllOf(HasSubstr("coordinator.db"),
                               HasSubstr("move the file away"))));
  }
  Spill(path, good);
  EXPECT_OK(JobStore::Open(scratch / "state").status());
}

// A job with too many files, one that violates this release's limits and one
// with corrupted bytes count as failed; the others can be read.
TEST(JobStoreTest, AJobThatCannotBeReadHasFailed) {
  const ScratchDirectory scratch;
  {
    ASSERT_OK_AND_ASSIGN(const auto store, JobStore::Open(scratch / "state"));
    for (const char* name : {"a", "files", "limits", "bits", "done", "z"}) {
      ASSERT_OK(store->Submit(MakeStored(name, 1)));
    }
  }
  {
    ASSERT_OK_AND_ASSIGN(const auto database,
                         Database::Open(scratch / "state/coordinator.db"));
    std::string files;
    for (int i = 0; i < 70'000; ++i) {
      absl::StrAppend(&files, "data { train_files { path: \"/", i, "\" } } ");
    }
    for (const auto& [name, text] :
         {std::pair<std::string, std::string>("files", files),
          {"limits", "steps: -1"}}) {
      ASSERT_OK(database->Run("UPDATE jobs SET job = job || ? WHERE name = ?",
                              {" " + text, name}));
    }
    ASSERT_OK(database->Run("UPDATE jobs SET progress = ? WHERE name = ?",
                            {"\xff\xff", "bits"}));
    ASSERT_OK(database->Run("UPDATE changes SET change = ? WHERE job = ?",
                            {"\xff\xff", "bits"}));
  }
  ASSERT_OK_AND_ASSIGN(const auto store, JobStore::Open(scratch / "state"));
  ASSERT_OK_AND_ASSIGN(const auto jobs, store->Jobs());
  EXPECT_THAT(Names(jobs),
              ElementsAre("a", "files", "limits", "bits", "done", "z"));
  for (const StoredJob& job : jobs) {
    const bool sound = job.job.name.size() == 1 || job.job.name == "done";
    EXPECT_EQ(job.progress.state(),
              sound ? v1::JOB_STATE_QUEUED : v1::JOB_STATE_FAILED);
    EXPECT_EQ(job.progress.job(), job.job.name);
    if (sound) continue;
    EXPECT_EQ(job.progress.status().code(),
              static_cast<int>(absl::StatusCode::kDataLoss));
    EXPECT_THAT(job.progress.status().message(), HasSubstr("cannot be read"));
  }
  // The failure is stored and recorded once.
  ASSERT_OK(store->Jobs());
  ASSERT_THAT(*store->History("bits"), SizeIs(1));
  EXPECT_EQ(store->History("bits")->back().state(), v1::JOB_STATE_FAILED);
  ASSERT_THAT(*store->History("limits"), SizeIs(2));
  EXPECT_EQ(store->History("limits")->back().state(), v1::JOB_STATE_FAILED);
  // Such a job can be submitted anew.
  ASSERT_OK(store->Submit(MakeStored("bits", 2)));
  EXPECT_EQ(store->Jobs()->back().job, MakeStored("bits", 2).job);
}

TEST(JobStoreTest, ForgetsTheOldestChangesOfAJob) {
  ASSERT_OK_AND_ASSIGN(const auto store, JobStore::Open(/*directory=*/""));
  ASSERT_OK(store->Submit(MakeStored("a", 1)));
  ASSERT_OK(store->Submit(MakeStored("b", 2)));
  v1::JobProgress progress = MakeStored("a", 1).progress;
  progress.set_state(v1::JOB_STATE_RECOVERING);
  for (int64_t i = 1; i <= kMaxChanges + 5; ++i) {
    progress.set_attempt(i);
    ASSERT_OK(store->Update(progress, i));
  }
  ASSERT_OK_AND_ASSIGN(const auto history, store->History("a"));
  ASSERT_EQ(static_cast<int64_t>(history.size()), kMaxChanges);
  EXPECT_EQ(history.front().attempt(), 6);
  EXPECT_EQ(history.back().attempt(), kMaxChanges + 5);
  EXPECT_EQ(store->History("b")->size(), 1u);
}

TEST(JobStoreTest, ForgetsAJobWithItsHistory) {
  ASSERT_OK_AND_ASSIGN(const auto store, JobStore::Open(/*directory=*/""));
  ASSERT_OK(store->Submit(MakeStored("a", 1)));
  ASSERT_OK(store->Submit(MakeStored("b", 2)));
  ASSERT_OK(store->Forget("a"));
  ASSERT_OK_AND_ASSIGN(const auto jobs, store->Jobs());
  ASSERT_EQ(jobs.size(), 1u);
  EXPECT_EQ(jobs[0].job.name, "b");
  EXPECT_THAT(*store->History("a"), IsEmpty());
  EXPECT_EQ(store->History("b")->size(), 1u);
}

TEST(JobStoreTest, AFullDiskIsAClearErrorAndChangesNothing) {
  const ScratchDirectory scratch;
  ASSERT_OK_AND_ASSIGN(const auto database,
                       Database::Open(scratch / "full.db"));
  ASSERT_OK(database->Run("CREATE TABLE t (x BLOB)"));
  // SQLite's own limit fails like a full disk.
  ASSERT_OK(database->Run("PRAGMA max_page_count = 4"));
  EXPECT_THAT(
      database->Run("INSERT INTO t VALUES (?)", {std::string(1 << 20, 'x')}),
      StatusIs(absl::StatusCode::kResourceExhausted,
               AllOf(HasSubstr("full.db"), HasSubstr("make room"))));
  EXPECT_OK(database->Run("INSERT INTO t VALUES (?)", {std::string("small")}));
}

TEST(JobStoreTest, ALaterSchemaIsRefused) {
  const ScratchDirectory scratch;
  EXPECT_OK(JobStore::Open(scratch / "state").status());
  {
    ASSERT_OK_AND_ASSIGN(const auto database,
                         Database::Open(scratch / "state/coordinator.db"));
    ASSERT_OK(database->Run("PRAGMA user_version = 7"));
  }
  EXPECT_THAT(JobStore::Open(scratch / "state"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("expected schema 6 or lower, got 7")));
}

TEST(JobStoreTest, KeepsWhoSubmittedAJobAndWhatThatCallerCould) {
  const ScratchDirectory scratch;
  StoredJob job = MakeStored("a", 1);
  job.submitter = {{"shop", {{Role::kTrain, "/data"}, {Role::kAdmin}}}, "id-1"};
  {
    ASSERT_OK_AND_ASSIGN(const auto store, JobStore::Open(scratch / "state"));
    ASSERT_OK(store->Submit(job));
  }
  {
    ASSERT_OK_AND_ASSIGN(const auto store, JobStore::Open(scratch / "state"));
    ASSERT_OK_AND_ASSIGN(const auto jobs, store->Jobs());
    EXPECT_EQ(jobs[0].submitter.caller, job.submitter.caller);
    EXPECT_EQ(jobs[0].submitter.request_id, "id-1");
  }
  // An earlier release did not store the submitter.
  {
    ASSERT_OK_AND_ASSIGN(const auto database,
                         Database::Open(scratch / "state/coordinator.db"));
    for (const char* column : {"submitter", "grants", "request_id"}) {
      ASSERT_OK(
          database->Run(absl::StrCat("ALTER TABLE jobs DROP COLUMN ", column)));
    }
    // The earlier release had no such columns of models either.
    for (const char* table : {"models", "previous_models"}) {
      for (const char* column : {"from_file", "weights"}) {
        ASSERT_OK(database->Run(
            absl::StrCat("ALTER TABLE ", table, " DROP COLUMN ", column)));
      }
    }
    ASSERT_OK(database->Run("PRAGMA user_version = 3"));
  }
  ASSERT_OK_AND_ASSIGN(const auto store, JobStore::Open(scratch / "state"));
  ASSERT_OK_AND_ASSIGN(const auto jobs, store->Jobs());
  EXPECT_THAT(Names(jobs), ElementsAre("a"));
  EXPECT_EQ(jobs[0].submitter.caller, Caller());
}

TEST(JobStoreTest, ARoleThatIsNotKnownTakesNoOther) {
  const ScratchDirectory scratch;
  StoredJob job = MakeStored("a", 1);
  job.submitter = {{"shop", {{Role::kTrain, "/data"}, {Role::kAdmin}}}, "id-1"};
  {
    ASSERT_OK_AND_ASSIGN(const auto store, JobStore::Open(scratch / "state"));
    ASSERT_OK(store->Submit(job));
  }
  {
    ASSERT_OK_AND_ASSIGN(const auto database,
                         Database::Open(scratch / "state/coordinator.db"));
    ASSERT_OK(database->Run("UPDATE jobs SET grants = 'audit:x,' || grants"));
  }
  ASSERT_OK_AND_ASSIGN(const auto store, JobStore::Open(scratch / "state"));
  ASSERT_OK_AND_ASSIGN(const auto jobs, store->Jobs());
  EXPECT_EQ(jobs[0].submitter.caller, job.submitter.caller);
}

// After a downgrade, data that the next release added is left alone.
TEST(JobStoreTest, WhatTheNextReleaseAddsIsLeftAlone) {
  const ScratchDirectory scratch;
  {
    ASSERT_OK_AND_ASSIGN(const auto store, JobStore::Open(scratch / "state"));
    ASSERT_OK(store->PutModel({{"m", "/a", "1"}}));
    ASSERT_OK(store->Submit(MakeStored("a", 1)));
  }
  const auto look = [&] {
    ASSERT_OK_AND_ASSIGN(const auto database,
                         Database::Open(scratch / "state/coordinator.db"));
    int64_t added = 0;
    ASSERT_OK(database->Run("SELECT later FROM models", {},
                            [&](const DatabaseRow& row) {
                              added = row.Integer(0);
                              return absl::OkStatus();
                            }));
    EXPECT_EQ(added, 8);
    ASSERT_OK(
        database->Run("PRAGMA user_version", {}, [](const DatabaseRow& row) {
          EXPECT_EQ(row.Integer(0), 6);
          return absl::OkStatus();
        }));
  };
  {
    ASSERT_OK_AND_ASSIGN(const auto database,
                         Database::Open(scratch / "state/coordinator.db"));
    ASSERT_OK(database->Run(
        "ALTER TABLE models ADD COLUMN later INTEGER NOT NULL DEFAULT 7"));
    // A model with weights of a type that this release lacks.
    for (const char* table : {"models", "previous_models"}) {
      ASSERT_OK(database->Run(absl::StrCat(
          "INSERT INTO ", table, " (name, version, directory, replicas, ",
          "weights) VALUES ('n', '1', '/later', 1, 99)")));
    }
    ASSERT_OK(database->Run("UPDATE models SET later = 8"));
    ASSERT_OK(database->Run("UPDATE jobs SET job = job || 'later: 7'"));
    ASSERT_OK(database->Run("PRAGMA user_version = 6"));
  }
  look();
  {
    ASSERT_OK_AND_ASSIGN(const auto store, JobStore::Open(scratch / "state"));
    ASSERT_OK_AND_ASSIGN(const std::vector<StoredModel> models,
                         store->Models());
    EXPECT_THAT(models, ElementsAre(StoredModel{{"m", "/a", "1"}}));
    EXPECT_THAT(*store->PreviousModels(), IsEmpty());
    EXPECT_THAT(*store->ModelDirectories(),
                UnorderedElementsAre("/a", "/later"));
    ASSERT_OK_AND_ASSIGN(const auto jobs, store->Jobs());
    EXPECT_THAT(Names(jobs), ElementsAre("a"));
    ASSERT_OK(
        store->PutModel({{"m", "/b", "2"}}, StoredModel{{"m", "/a", "1"}}));
  }
  look();
}

TEST(JobStoreTest, ATransactionThatFailsChangesNothing) {
  ASSERT_OK_AND_ASSIGN(const auto database, Database::Open(""));
  ASSERT_OK(database->Run("CREATE TABLE t (x INTEGER)"));
  EXPECT_THAT(database->Transact([&]() -> absl::Status {
    EXPECT_OK(database->Run("INSERT INTO t VALUES (?)", {int64_t{7}}));
    return absl::AbortedError("no");
  }),
              StatusIs(absl::StatusCode::kAborted, "no"));
  int rows = 0;
  ASSERT_OK(database->Run("SELECT x FROM t", {}, [&](const DatabaseRow&) {
    ++rows;
    return absl::OkStatus();
  }));
  EXPECT_EQ(rows, 0);
}

// The file of a mount that comes and goes.
TEST(JobStoreTest, ATransactionEndsThoughItsFileIsAway) {
  const ScratchDirectory scratch;
  const std::string path = scratch / "t.db", away = scratch / "away.db";
  ASSERT_OK_AND_ASSIGN(auto database, Database::Open(path));
  ASSERT_OK(database->Run("CREATE TABLE t (x INTEGER)"));
  EXPECT_THAT(database->Transact([&]() -> absl::Status {
    EXPECT_OK(database->Run("INSERT INTO t VALUES (?)", {int64_t{7}}));
    std::filesystem::rename(path, away);
    return absl::OkStatus();
  }),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("removed")));
  std::filesystem::rename(away, path);
  ASSERT_OK(database->Run("INSERT INTO t VALUES (?)", {int64_t{8}}));
  database = nullptr;
  ASSERT_OK_AND_ASSIGN(database, Database::Open(path));
  std::vector<int64_t> rows;
  ASSERT_OK(database->Run("SELECT x FROM t", {}, [&](const DatabaseRow& row) {
    rows.push_back(row.Integer(0));
    return absl::OkStatus();
  }));
  EXPECT_THAT(rows, ElementsAre(8));
}

}  // namespace
}  // namespace gshard
