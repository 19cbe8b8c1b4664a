// JobStore: the state that a coordinator needs after a restart: its jobs with
// every change of their states, the served models and the placement of their
// experts. Nothing about members, which rejoin.
//
// An SQLite file, DIRECTORY/coordinator.db; with `sqlite3` it can be looked at:
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
// It stays small: of each job the last kMaxChanges changes are kept, and of the
// jobs that are over the coordinator keeps the last kMaxJobs.

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
#include "services/config/model_config.h"
#include "services/config/training_job.h"
#include "services/coordinator/store/database.h"
#include "services/rpc/security/audit.h"

namespace gshard {

inline constexpr int64_t kMaxChanges = 1000;  // of a job
inline constexpr int64_t kMaxJobs = 1000;     // that are over

struct StoredJob {
  TrainingJob job;
  bool resume = false;
  int64_t submitted_micros = 0;
  v1::JobProgress progress;  // with state and attempt

  // With what the caller could do then. Without a name if an earlier release
  // took the job, which did not note it.
  Requester submitter = {};
};

struct StoredModel {
  std::string name;
  std::string version;  // empty: the checkpoint's step
  std::string directory;
  int32_t replicas = 0;  // as asked for; 0: the default
  std::optional<ComputeType> weights = std::nullopt;  // none: the model's own
  bool from_file = false;  // the models file has its name

  bool operator==(const StoredModel&) const = default;
};

// Thread-safe. Errors of all methods: also those of Database.
class JobStore {
 public:
  // With an empty directory nothing outlives the process. Errors:
  // FailedPrecondition if the file is of a release after the next, or in use.
  static absl::StatusOr<std::unique_ptr<JobStore>> Open(
      const std::string& directory);

  // A job as it is submitted: the last in the queue, also if there was one of
  // its name.
  absl::Status Submit(const StoredJob& job);

  // Notes the progress of a job, and with `time` >= 0 (microseconds since 1970)
  // that its state or attempt has changed.
  absl::Status Update(const v1::JobProgress& progress, int64_t time_micros);

  // Forgets a job with its history.
  absl::Status Forget(const std::string& job);

  // In the order of their submission. One that cannot be read, as a damaged
  // file or a release with other limits may leave it, has failed: with its name
  // and DataLoss, and nothing else.
  absl::StatusOr<std::vector<StoredJob>> Jobs();

  // The oldest first; empty for a job that is not known. Changes that cannot be
  // read are left out.
  absl::StatusOr<std::vector<v1::JobChange>> History(const std::string& job);

  // Served models, one of a name, and the one that the name served before. That
  // is remembered when the model is removed.
  absl::Status PutModel(const StoredModel& model,
                        const std::optional<StoredModel>& previous = {});
  // Nothing happens if another version is served; empty: any version.
  absl::Status RemoveModel(const std::string& name, const std::string& version);
  absl::StatusOr<std::vector<StoredModel>> Models();
  absl::StatusOr<std::vector<StoredModel>> PreviousModels();

  // Where the experts of a served session are; without workers it is forgotten.
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
