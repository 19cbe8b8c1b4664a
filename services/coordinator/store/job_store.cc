#include "services/coordinator/store/job_store.h"

#include <map>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "services/base/log.h"
#include "services/base/status_macros.h"
#include "services/config/model_config_proto.h"
#include "services/coordinator/store/progress_feed.h"
#include "services/rpc/wire/status.h"
#include "services/storage/file.h"

namespace gshard {
namespace {

constexpr int64_t kSchema = 5;
// The schema of the next release, which may only extend this one.
constexpr int64_t kReadableSchema = kSchema + 1;

// Upgrades a file from schema n to n + 1.
absl::Status Upgrade(Database& database, int64_t schema) {
  if (schema == 4) {
    for (const char* table : {"models", "previous_models"}) {
      for (const char* column : {"weights", "from_file"}) {
        RETURN_IF_ERROR(
            database.Run(absl::StrCat("ALTER TABLE ", table, " ADD COLUMN ",
                                      column, " INTEGER NOT NULL DEFAULT 0")));
      }
    }
    return database.Run("PRAGMA user_version = 5");
  }
  if (schema == 3) {
    for (const char* sql :
         {"ALTER TABLE jobs ADD COLUMN submitter BLOB NOT NULL DEFAULT ''",
          "ALTER TABLE jobs ADD COLUMN grants BLOB NOT NULL DEFAULT ''",
          "ALTER TABLE jobs ADD COLUMN request_id BLOB NOT NULL DEFAULT ''",
          "PRAGMA user_version = 4"}) {
      RETURN_IF_ERROR(database.Run(sql));
    }
    return absl::OkStatus();
  }
  if (schema == 2) {
    RETURN_IF_ERROR(database.Run(
        "CREATE TABLE previous_models (name BLOB PRIMARY KEY, version BLOB NOT "
        "NULL, directory BLOB NOT NULL, replicas INTEGER NOT NULL)"));
    return database.Run("PRAGMA user_version = 3");
  }
  if (schema == 1) {
    for (const char* sql :
         {"ALTER TABLE models ADD COLUMN replicas INTEGER NOT NULL DEFAULT 0",
          "CREATE TABLE placements (session BLOB PRIMARY KEY, placement BLOB "
          "NOT NULL)",
          "PRAGMA user_version = 2"}) {
      RETURN_IF_ERROR(database.Run(sql));
    }
    return absl::OkStatus();
  }
  for (const char* sql :
       {"CREATE TABLE jobs (place INTEGER PRIMARY KEY AUTOINCREMENT, "
        "name BLOB NOT NULL UNIQUE, job BLOB NOT NULL, resume INTEGER NOT "
        "NULL, submitted_micros INTEGER NOT NULL, progress BLOB NOT NULL)",
        "CREATE TABLE changes (number INTEGER PRIMARY KEY AUTOINCREMENT, "
        "job BLOB NOT NULL, change BLOB NOT NULL)",
        "CREATE INDEX changes_of_job ON changes (job, number)",
        "CREATE TABLE models (name BLOB PRIMARY KEY, version BLOB NOT NULL, "
        "directory BLOB NOT NULL)",
        "PRAGMA user_version = 1"}) {
    RETURN_IF_ERROR(database.Run(sql));
  }
  return absl::OkStatus();
}

absl::Status Damaged(const std::string& what) {
  return absl::DataLossError(
      absl::StrCat("the coordinator's state is damaged: ", what));
}

Requester ReadSubmitter(const DatabaseRow& row) {
  Requester who = {.caller = {.name = row.Text(5), .grants = {}},
                   .request_id = row.Text(7)};
  const std::string grants = row.Text(6);
  for (const absl::string_view word : absl::StrSplit(grants, ',')) {
    // An unknown role, from a later release, is ignored without affecting
    // others.
    const Grants one = ParseGrants(word).value_or(Grants());
    who.caller.grants.insert(who.caller.grants.end(), one.begin(), one.end());
  }
  return who;
}

// Parses a row of jobs. Errors: DataLoss.
absl::StatusOr<StoredJob> ReadJob(const DatabaseRow& row) {
  StoredJob job;
  auto parsed = ParseTrainingJob(row.Text(1), UnknownFields::kIgnored);
  if (!parsed.ok()) return Damaged(std::string(parsed.status().message()));
  job.job = *std::move(parsed);
  job.resume = row.Integer(2) != 0;
  job.submitted_micros = row.Integer(3);
  if (!job.progress.ParseFromString(row.Text(4)) ||
      job.progress.job() != job.job.name || job.job.name != row.Text(0)) {
    return Damaged("its progress, or its name");
  }
  job.submitter = ReadSubmitter(row);
  return job;
}

// The entry for a job that cannot be read.
StoredJob UnreadableJob(const DatabaseRow& row, const absl::Status& why) {
  StoredJob job;
  // Its attempt number matters when it is submitted again.
  if (!job.progress.ParseFromString(row.Text(4))) job.progress.Clear();
  job.job.name = absl::CHexEscape(row.Text(0));
  // Its folders are unknown: only its submitter, and callers without limits,
  // may see it.
  job.job.checkpoint.directory = std::string("/");
  job.progress.set_job(job.job.name);
  job.progress.set_state(v1::JOB_STATE_FAILED);
  *job.progress.mutable_status() =
      ToProtoStatus(Annotate(why, "the job cannot be read; submit it again"));
  job.submitter = ReadSubmitter(row);
  return job;
}

}  // namespace

absl::StatusOr<std::unique_ptr<JobStore>> JobStore::Open(
    const std::string& directory) {
  std::string path;
  if (!directory.empty()) {
    RETURN_IF_ERROR(MakeDirectories(directory));
    path = directory + "/coordinator.db";
  }
  absl::StatusOr<std::unique_ptr<Database>> opened = Database::Open(path);
  if (absl::IsDataLoss(opened.status())) {
    return Annotate(opened.status(),
                    "the coordinator's state is damaged; to begin without it, "
                    "move the file away");
  }
  RETURN_IF_ERROR(opened.status());
  Database& database = **opened;
  int64_t schema = 0;
  RETURN_IF_ERROR(
      database.Run("PRAGMA user_version", {}, [&](const DatabaseRow& row) {
        schema = row.Integer(0);
        return absl::OkStatus();
      }));
  if (schema > kReadableSchema) {
    return absl::FailedPreconditionError(absl::StrCat(
        path, ": expected schema ", kReadableSchema, " or lower, got ", schema,
        ": it was written by a later release"));
  }
  if (schema == 0 && !path.empty()) {
    // Also if its disk is not mounted.
    LogInfo("no earlier state: jobs and served models begin anew",
            {{"path", path}});
  }
  for (; schema < kSchema; ++schema) {
    RETURN_IF_ERROR(
        database.Transact([&] { return Upgrade(database, schema); }));
  }
  return std::unique_ptr<JobStore>(new JobStore(*std::move(opened)));
}

absl::Status JobStore::AppendChange(const v1::JobProgress& progress,
                                    int64_t time_micros) {
  v1::JobChange change;
  change.set_unix_micros(time_micros);
  change.set_state(progress.state());
  change.set_attempt(progress.attempt());
  change.set_step(progress.step());
  if (progress.has_status()) *change.mutable_cause() = progress.status();
  RETURN_IF_ERROR(
      database_->Run("INSERT INTO changes (job, change) VALUES (?, ?)",
                     {progress.job(), change.SerializeAsString()}));
  return database_->Run(
      "DELETE FROM changes WHERE job = ? AND number <= (SELECT number FROM "
      "changes WHERE job = ? ORDER BY number DESC LIMIT 1 OFFSET ?)",
      {progress.job(), progress.job(), kMaxChanges});
}

absl::StatusOr<std::string> JobStore::TextOf(const TrainingJob& job) {
  std::string text = TrainingJobToText(job);
  if (text.size() <= kMaxTextProtoBytes) return text;
  return absl::ResourceExhaustedError(absl::StrCat(
      "job: expected at most ", kMaxTextProtoBytes,
      " bytes with the names of its ", job.data.train_files.size(),
      " files written out, got ", text.size(), "; put them into fewer files"));
}

absl::Status JobStore::Submit(const StoredJob& job) {
  ASSIGN_OR_RETURN(const std::string text, TextOf(job.job));
  MutexLock lock(mutex_);
  return database_->Transact([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(
                                 mutex_) -> absl::Status {
    RETURN_IF_ERROR(
        database_->Run("DELETE FROM jobs WHERE name = ?", {job.job.name}));
    RETURN_IF_ERROR(database_->Run(
        "INSERT INTO jobs (name, job, resume, submitted_micros, progress, "
        "submitter, grants, request_id) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        {job.job.name, text, int64_t{job.resume}, job.submitted_micros,
         job.progress.SerializeAsString(), job.submitter.caller.name,
         GrantsText(job.submitter.caller.grants), job.submitter.request_id}));
    return AppendChange(job.progress, job.submitted_micros);
  });
}

absl::Status JobStore::Update(const v1::JobProgress& progress,
                              int64_t time_micros) {
  MutexLock lock(mutex_);
  return database_->Transact(
      [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) -> absl::Status {
        RETURN_IF_ERROR(
            database_->Run("UPDATE jobs SET progress = ? WHERE name = ?",
                           {progress.SerializeAsString(), progress.job()}));
        return time_micros < 0 ? absl::OkStatus()
                               : AppendChange(progress, time_micros);
      });
}

absl::Status JobStore::Forget(const std::string& job) {
  MutexLock lock(mutex_);
  return database_->Transact([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(
                                 mutex_) -> absl::Status {
    RETURN_IF_ERROR(database_->Run("DELETE FROM jobs WHERE name = ?", {job}));
    return database_->Run("DELETE FROM changes WHERE job = ?", {job});
  });
}

absl::StatusOr<std::vector<StoredJob>> JobStore::Jobs() {
  MutexLock lock(mutex_);
  std::vector<StoredJob> jobs;
  std::map<std::string, v1::JobProgress> failed;  // by name
  RETURN_IF_ERROR(database_->Run(
      "SELECT name, job, resume, submitted_micros, progress, submitter, "
      "grants, request_id FROM jobs ORDER BY place",
      {}, [&](const DatabaseRow& row) {
        absl::StatusOr<StoredJob> job = ReadJob(row);
        if (!job.ok()) {
          v1::JobProgress before;
          const bool over =
              before.ParseFromString(row.Text(4)) && IsOver(before.state());
          job = UnreadableJob(row, job.status());
          if (!over) failed[row.Text(0)] = job->progress;
          LogError("a job cannot be read, and has failed by that",
                   {{"job", job->job.name},
                    {"status", job->progress.status().message()}});
        }
        jobs.push_back(*std::move(job));
        return absl::OkStatus();
      }));
  // Published state must be durable for the next coordinator.
  const int64_t now = absl::ToUnixMicros(absl::Now());
  RETURN_IF_ERROR(database_->Transact(
      [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) -> absl::Status {
        for (const auto& [name, progress] : failed) {
          RETURN_IF_ERROR(
              database_->Run("UPDATE jobs SET progress = ? WHERE name = ?",
                             {progress.SerializeAsString(), name}));
          RETURN_IF_ERROR(AppendChange(progress, now));
        }
        return absl::OkStatus();
      }));
  return jobs;
}

absl::StatusOr<std::vector<v1::JobChange>> JobStore::History(
    const std::string& job) {
  MutexLock lock(mutex_);
  std::vector<v1::JobChange> changes;
  RETURN_IF_ERROR(
      database_->Run("SELECT change FROM changes WHERE job = ? ORDER BY number",
                     {job}, [&](const DatabaseRow& row) {
                       v1::JobChange change;
                       if (change.ParseFromString(row.Text(0))) {
                         changes.push_back(std::move(change));
                       }
                       return absl::OkStatus();
                     }));
  return changes;
}

absl::Status JobStore::PutRow(const std::string& table,
                              const StoredModel& model) {
  const ModelRequest& request = model.request;
  return database_->Run(
      absl::StrCat(
          "INSERT INTO ", table,
          " (name, version, directory, replicas, weights, from_file) VALUES "
          "(?, "
          "?, ?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET version = "
          "excluded.version, directory = excluded.directory, replicas = "
          "excluded.replicas, weights = excluded.weights, from_file = "
          "excluded.from_file"),
      {request.name, request.version, request.checkpoint, request.replicas,
       int64_t{ComputeTypeToProto(request.weights)}, int64_t{model.from_file}});
}

absl::StatusOr<std::vector<StoredModel>> JobStore::Rows(
    const std::string& table) {
  std::vector<StoredModel> models;
  RETURN_IF_ERROR(database_->Run(
      absl::StrCat("SELECT name, version, directory, replicas, weights, "
                   "from_file FROM ",
                   table, " ORDER BY name"),
      {}, [&](const DatabaseRow& row) {
        const auto weights = ComputeTypeFromProto(row.Integer(4));
        if (!weights.ok()) {
          LogError("a model cannot be read, and is not served",
                   {{"table", table},
                    {"model", absl::CHexEscape(row.Text(0))},
                    {"status", Annotate(weights.status(), "weights")}});
          return absl::OkStatus();
        }
        models.push_back({.request = {.name = row.Text(0),
                                      .checkpoint = row.Text(2),
                                      .version = row.Text(1),
                                      .replicas = row.Integer(3),
                                      .weights = *weights},
                          .from_file = row.Integer(5) != 0});
        return absl::OkStatus();
      }));
  return models;
}

absl::Status JobStore::PutModel(const StoredModel& model,
                                const std::optional<StoredModel>& previous) {
  MutexLock lock(mutex_);
  return database_->Transact(
      [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) -> absl::Status {
        if (previous.has_value()) {
          RETURN_IF_ERROR(PutRow("previous_models", *previous));
        }
        return PutRow("models", model);
      });
}

absl::Status JobStore::RemoveModel(const std::string& name,
                                   const std::string& version) {
  MutexLock lock(mutex_);
  return database_->Run(
      "DELETE FROM models WHERE name = ?1 AND (version = ?2 OR length(?2) = 0)",
      {name, version});
}

absl::StatusOr<std::vector<StoredModel>> JobStore::Models() {
  MutexLock lock(mutex_);
  return Rows("models");
}

absl::StatusOr<std::vector<StoredModel>> JobStore::PreviousModels() {
  MutexLock lock(mutex_);
  return Rows("previous_models");
}

absl::StatusOr<std::vector<std::string>> JobStore::ModelDirectories() {
  MutexLock lock(mutex_);
  std::vector<std::string> directories;
  RETURN_IF_ERROR(
      database_->Run("SELECT directory FROM models UNION SELECT directory FROM "
                     "previous_models",
                     {}, [&](const DatabaseRow& row) {
                       directories.push_back(row.Text(0));
                       return absl::OkStatus();
                     }));
  return directories;
}

absl::Status JobStore::PutPlacement(const std::string& session,
                                    const v1::Placement& placement) {
  MutexLock lock(mutex_);
  if (placement.workers().empty()) {
    return database_->Run("DELETE FROM placements WHERE session = ?",
                          {session});
  }
  return database_->Run(
      "INSERT INTO placements (session, placement) VALUES (?, ?) ON CONFLICT "
      "(session) DO UPDATE SET placement = excluded.placement",
      {session, placement.SerializeAsString()});
}

absl::StatusOr<std::map<std::string, v1::Placement>> JobStore::Placements() {
  MutexLock lock(mutex_);
  std::map<std::string, v1::Placement> placements;
  RETURN_IF_ERROR(database_->Run(
      "SELECT session, placement FROM placements", {},
      [&](const DatabaseRow& row) {
        if (placements[row.Text(0)].ParseFromString(row.Text(1))) {
          return absl::OkStatus();
        }
        return Damaged(absl::StrCat("the placement of '", row.Text(0), "'"));
      }));
  return placements;
}

}  // namespace gshard
