// Coordinator: membership, training jobs and served models behind one front.
// The RPCs of CoordinatorService, without gRPC.

#ifndef SERVICES_COORDINATOR_COORDINATOR_H_
#define SERVICES_COORDINATOR_COORDINATOR_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "services/coordinator/job_runner.h"
#include "services/coordinator/members.h"
#include "services/coordinator/served_models.h"
#include "services/coordinator/task_queue.h"

namespace gshard {

struct CoordinatorOptions {
  absl::Duration lease = absl::Seconds(10);
  std::function<absl::Time()> clock = absl::Now;
  std::string build_version = {};
  TrainingMetrics* metrics = nullptr;  // may be null
  GaugeFamily member_counts = {};      // by role; may be unset

  // Models to serve from the start, by name, once so many members are there.
  std::vector<std::pair<std::string, std::string>> models = {};
  int64_t min_routers = 1;
  int64_t min_workers = 1;

  // Of jobs; see JobSettings.
  absl::Duration microbatch_timeout = absl::Minutes(10);
  absl::Duration retry_delay = absl::Milliseconds(50);
};

// Thread-safe. Errors are those of the RPCs of the same names.
class Coordinator {
 public:
  template <typename Response>
  using Done = std::function<void(absl::StatusOr<Response>)>;

  explicit Coordinator(CoordinatorOptions options);
  ~Coordinator() { Shutdown(); }

  Members& members() { return *members_; }

  // These don't block; `done` is called once, on any thread, or never if
  // Shutdown() comes first.
  void SubmitJob(const v1::SubmitJobRequest& request,
                 Done<v1::SubmitJobResponse> done);
  void CancelJob(const v1::CancelJobRequest& request,
                 Done<v1::CancelJobResponse> done);
  void LoadModel(const v1::LoadModelRequest& request,
                 Done<v1::LoadModelResponse> done);
  void UnloadModel(const v1::UnloadModelRequest& request,
                   Done<v1::UnloadModelResponse> done);

  v1::DescribeResponse Describe(const v1::DescribeRequest& request) const;

  // Valid as long as this.
  absl::StatusOr<ProgressFeed*> WatchJob(const std::string& job) const;

  // The dense side of a training session.
  absl::StatusOr<std::shared_ptr<DenseParameters>> FindTraining(
      const std::string& session) const;

  // Ends the running job with a checkpoint, waiting at most `grace`, then all
  // watches and members' streams.
  void Drain(absl::Duration grace);

  // Ends at once all that is left. Nothing is called back any more.
  void Shutdown();

 private:
  // On jobs_queue_.
  absl::StatusOr<v1::SubmitJobResponse> StartJob(
      const v1::SubmitJobRequest& request);
  JobRunner* Find(const std::string& job) const;

  void OnMembersChanged();
  void CountMembers();
  void ServeInitialModels();  // on serving_queue_

  const CoordinatorOptions options_;
  std::atomic<int64_t> placement_version_{0};
  std::atomic<bool> draining_{false};
  std::unique_ptr<Members> members_;
  ServedModels served_;
  bool initial_models_begun_ = false;  // of serving_queue_

  mutable std::mutex mutex_;
  // In order of submission. A job that is run again has the last entry.
  std::vector<std::unique_ptr<JobRunner>> jobs_;  // guarded by mutex_
  std::vector<std::string> job_names_;            // of jobs_; likewise

  // Last: their threads use the others.
  TaskQueue jobs_queue_;
  TaskQueue serving_queue_;
};

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_COORDINATOR_H_
