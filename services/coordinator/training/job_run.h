// The life cycle of a training job, on its own thread.
//
//   prepare -> wait for members -> attempt -> ... -> serve -> over
//
// An attempt that is lost, rolls back or ends because members have joined is
// followed by another one, from the last checkpoint. Before that loads, and
// before the job is over, members drop the previous session, since there may
// not be memory for both.
//
// Nothing else touches the job's state: events arrive through the mailbox, and
// state for others is published to a JobStatus and a feed.

#ifndef SERVICES_COORDINATOR_TRAINING_JOB_RUN_H_
#define SERVICES_COORDINATOR_TRAINING_JOB_RUN_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "services/base/monotonic_time.h"
#include "services/base/mutex.h"
#include "services/base/task_queue.h"
#include "services/config/training_job.h"
#include "services/coordinator/membership/members.h"
#include "services/coordinator/store/progress_feed.h"
#include "services/coordinator/training/dense_parameters.h"
#include "services/coordinator/training/dense_reduction.h"
#include "services/coordinator/training/job_mailbox.h"
#include "services/coordinator/training/job_reporter.h"
#include "services/storage/fault_points.h"

namespace gshard {

struct JobSettings {
  TrainingJob job;  // validated
  bool resume = false;
  // Number of the first attempt: higher than any before under the job's name.
  int64_t attempt = 1;
  // The job was running when an earlier coordinator ended: it may be done
  // without having been recorded as such.
  bool restored = false;
  // A stop parks the job for the next coordinator instead of ending it.
  bool durable = false;

  ReduceWay reduce = ReduceWay::kCoordinator;

  // Pause before a failed microbatch is rerun; doubles with each failure.
  absl::Duration retry_delay = absl::Milliseconds(50);
};

// Functions are called on the job's thread.
struct JobEnvironment {
  Members* members = nullptr;
  // Runs blocking disk work, sequentially: prepares the job, and writes its
  // checkpoints.
  std::function<void(std::function<void()>)> on_disk;
  // Sums gradients; runs as long as calls are served.
  TaskQueue* sums = nullptr;
  TrainingMetrics* metrics = nullptr;  // may be null
  int64_t memory_bytes = 0;            // limit of this process; 0: unknown
  int niceness = 0;                    // for the job's thread
  std::function<MonotonicTime()> clock = MonotonicTime::Now;
  // A number that increases with each call.
  std::function<int64_t()> next_placement_version;
  // Called when the job's state or attempt has changed; before the attempt
  // begins.
  std::function<void(const v1::JobProgress&)> on_change =
      [](const v1::JobProgress&) {};
  // Called when a checkpoint has been written, with the state for a restart:
  // the training time so far.
  std::function<void(const v1::JobProgress&)> on_checkpoint =
      [](const v1::JobProgress&) {};
  // Checkpoints in use by others, which are kept in any case. On the disk
  // thread.
  std::function<std::vector<std::string>()> checkpoints_in_use = [] {
    return std::vector<std::string>();
  };
  FaultPoints* faults = nullptr;  // see services/storage/file.h
  // Serves a checkpoint under the job's serve_as; `done` on any thread.
  // Unavailable: another attempt may succeed, since members were lost or the
  // model could not be recorded, for example.
  std::function<void(const std::string& directory,
                     std::function<void(const absl::Status&)> done)>
      serve;
  // Ends that; `done` on any thread. OK: too late, it is served.
  std::function<void(const std::string& directory,
                     std::function<void(const absl::Status&)> done)>
      give_up_serving;
};

// The state of a running job that others see: a snapshot that its thread
// publishes. Thread-safe.
class JobStatus {
 public:
  // The session that members have loaded, or are loading, and its dense
  // parameters: null unless they are here.
  void Publish(std::optional<v1::SessionInfo> session,
               std::shared_ptr<DenseParameters> dense) {
    MutexLock lock(mutex_);
    session_ = std::move(session);
    dense_ = std::move(dense);
  }
  void Clear() { Publish(std::nullopt, nullptr); }

  std::optional<v1::SessionInfo> session() const {
    MutexLock lock(mutex_);
    return session_;
  }
  std::shared_ptr<DenseParameters> dense() const {
    MutexLock lock(mutex_);
    return dense_;
  }

 private:
  mutable Mutex mutex_;
  std::optional<v1::SessionInfo> session_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<DenseParameters> dense_ ABSL_GUARDED_BY(mutex_);
};

// Runs the job on this thread. On return it is finished; or parked, i.e. in the
// state QUEUED; or was halted, with nothing published. `feed` and `status`
// outlive it, `mailbox` is closed.
void RunJob(const JobSettings& settings, const JobEnvironment& environment,
            const std::shared_ptr<JobMailbox>& mailbox, ProgressFeed* feed,
            JobStatus* status);

// A running job, and how others communicate with it. Thread-safe; methods do
// not wait for the job.
class JobThread {
 public:
  // Starts the job. `feed` and the objects in `environment` outlive this.
  // `on_end` is the last call of its thread.
  JobThread(const JobSettings& settings, const JobEnvironment& environment,
            ProgressFeed* feed, std::function<void()> on_end);
  // Halts the job, and waits for its thread.
  ~JobThread() {
    Halt();
    thread_.join();
  }

  void OnMembersChanged() { mailbox_->TellMembersChanged(); }
  // Ends the job now.
  void Cancel() { mailbox_->Cancel(); }
  // Ends it after the current step, or without that if no router is left for
  // it, with a checkpoint; without one if no step is running. A durable job is
  // parked, i.e. queued again.
  void Stop() { mailbox_->Stop(); }
  // The coordinator is about to dismiss its members: their departure no longer
  // counts as a loss, and nothing more is recorded for the job.
  void Halt() { mailbox_->Halt(); }

  // Null unless training is loaded and the coordinator reduces.
  std::shared_ptr<DenseParameters> dense() const { return status_.dense(); }
  // Nothing unless members hold a session of the job.
  std::optional<v1::SessionInfo> Describe() const { return status_.session(); }

 private:
  const std::shared_ptr<JobMailbox> mailbox_;
  JobStatus status_;
  std::thread thread_;  // last: it uses the members above
};

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_TRAINING_JOB_RUN_H_
