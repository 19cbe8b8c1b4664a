// JobStore: the state that a coordinator needs after a restart: its jobs with
// every change of their states, the served models and the placement of their
// experts. Nothing about members, which rejoin.
//
// An SQLite file, DIRECTORY/coordinator.db, which `sqlite3` can inspect:
//
//   jobs              a row a job: its message as text, its last progress, and
//                     who submitted it, with what roles
//
//   changes           the history of the jobs
//
//   models            what is served
//
//   previous_models   what its names served before
//
//   placements        where its experts are
//
// A release only extends the schema of the previous one, so that a coordinator
// can be replaced by one of the next release, and back.
//
// It stays small: it keeps the last kMaxChanges changes of each job, and the
// coordinator keeps the last kMaxJobs finished jobs.

#ifndef SERVICES_COORDINATOR_STORE_JOB_STORE_H_
#define SERVICES_COORDINATOR_STORE_JOB_STORE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/gshard/v1/coordinator.pb.h"
#include "services/base/mutex.h"
#include "services/config/model_request.h"
#include "services/config/training_job.h"
#include "services/coordinator/store/database.h"
#include "services/rpc/security/audit.h"

namespace gshard {

inline constexpr int64_t kMaxChanges = 1000;  // per job
inline constexpr int64_t kMaxJobs = 1000;     // finished ones

struct StoredJob {
  TrainingJob job;
  bool resume = false;
  int64_t submitted_micros = 0;
  v1::JobProgress progress;  // with state and attempt

  // With the caller's rights then. The name is empty if an earlier release
  // accepted the job, which did not record it.
  Requester submitter = {};
};

struct StoredModel {
  ModelRequest request;
  bool from_file = false;  // its name is in the models file

  bool operator==(const StoredModel&) const = default;
};

// Thread-safe. Errors of all methods: also those of Database.
class JobStore {
 public:
  // With an empty directory nothing outlives the process. Errors: those of
  // Database::Open; FailedPrecondition if the file is from a release later than
  // the next.
  static absl::StatusOr<std::unique_ptr<JobStore>> Open(
      const std::string& directory);

  // The text by which a job is stored. Errors: ResourceExhausted if it could
  // not be read back, due to the number of its files.
  static absl::StatusOr<std::string> TextOf(const TrainingJob& job);

  // Adds a submitted job at the end of the queue, even if one of its name
  // exists. Errors: those of TextOf.
  absl::Status Submit(const StoredJob& job);

  // Records the progress of a job and, with `time` >= 0 (microseconds since
  // 1970), a change of its state or attempt.
  absl::Status Update(const v1::JobProgress& progress, int64_t time_micros);

  // Deletes a job and its history.
  absl::Status Forget(const std::string& job);

  // In order of submission. A job that cannot be read, due to damage or a
  // release with other limits, is returned as failed, with only its name and
  // DataLoss.
  absl::StatusOr<std::vector<StoredJob>> Jobs();

  // Oldest first; empty for an unknown job. Unreadable changes are skipped.
  absl::StatusOr<std::vector<v1::JobChange>> History(const std::string& job);

  // Served models, one per name, and the one that the name served before. That
  // is remembered when the model is removed. A model that a later release has
  // stored and this one cannot serve is left out, but stays in the file.
  absl::Status PutModel(const StoredModel& model,
                        const std::optional<StoredModel>& previous = {});
  // No effect if another version is served; empty: any version.
  absl::Status RemoveModel(const std::string& name, const std::string& version);
  absl::StatusOr<std::vector<StoredModel>> Models();
  absl::StatusOr<std::vector<StoredModel>> PreviousModels();
  // The checkpoints of all of them, also of those left out.
  absl::StatusOr<std::vector<std::string>> ModelDirectories();

  // The placement of a served session's experts; deleted if without workers.
  absl::Status PutPlacement(const std::string& session,
                            const v1::Placement& placement);
  // By session. Errors: DataLoss naming it.
  absl::StatusOr<std::map<std::string, v1::Placement>> Placements();

 private:
  explicit JobStore(std::unique_ptr<Database> database)
      : database_(std::move(database)) {}

  absl::Status AppendChange(const v1::JobProgress& progress,
                            int64_t time_micros)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status PutRow(const std::string& table, const StoredModel& model)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<std::vector<StoredModel>> Rows(const std::string& table)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  const std::unique_ptr<Database> database_ ABSL_PT_GUARDED_BY(mutex_);
};

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_STORE_JOB_STORE_H_
