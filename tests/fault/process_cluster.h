// A cluster of real processes that can be killed, paused and cut off while they
// train a job.

#ifndef TESTS_FAULT_PROCESS_CLUSTER_H_
#define TESTS_FAULT_PROCESS_CLUSTER_H_

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/child_process.h"
#include "proto/gshard/v1/coordinator.grpc.pb.h"
#include "services/config/training_job.h"
#include "tests/fault/silent_link.h"
#include "tests/integration/temporary_directory.h"

namespace gshard {

// A coordinator, two routers and three workers, with the given lease.
class ProcessCluster {
 public:
  enum class Wires {
    // Each member reaches the coordinator, and routers reach each worker, over
    // separate links, like separate machines.
    kLinks,
    // Members use sockets directly, as under `gshard up`: no proxy reads what a
    // paused process leaves unread.
    kSockets,
  };

  explicit ProcessCluster(int64_t lease_ms, Wires wires = Wires::kLinks);

  // Shifts the coordinator's wall clock by `seconds` from the true time.
  void SetClock(int64_t seconds);
  ~ProcessCluster();

  // "coordinator", "router-0", "worker-2", ...
  void Kill(const std::string& name);     // returns when it has ended
  void Restart(const std::string& name);  // after Kill()
  // Tells all to stop by SIGTERM; returns when they have.
  void StopAll(bool members_first);
  void StartAll();
  void Pause(const std::string& name);
  void GoOn(const std::string& name);

  // The link between a member and the coordinator. Needs Wires::kLinks.
  SilentLink& ToCoordinator(const std::string& member) {
    return *links_.at(member);
  }
  // The link between the routers and a worker. Needs Wires::kLinks.
  SilentLink& ToWorker(const std::string& worker) {
    return *links_.at(worker + "-calls");
  }

  // These wait up to a minute and return false if the event does not occur.
  bool AwaitStep(int64_t step);
  bool AwaitMember(const std::string& name, bool there);
  bool AwaitLog(const std::string& name, const std::string& text);
  // Waits for a new heartbeat; if `idle`, one that reports no calls in flight.
  bool AwaitHeartbeat(const std::string& name, bool idle = false);

  // NamesJob() with its checkpoints in this cluster's folder.
  TrainingJob Job() const;
  absl::Status Submit(const TrainingJob& job);
  // Follows the job to its end, past restarts of the coordinator.
  absl::StatusOr<v1::JobProgress> AwaitEnd(const std::string& job);
  // The job's state, with its history.
  absl::StatusOr<v1::JobInfo> Info(const std::string& job);
  absl::StatusOr<v1::DescribeResponse> Describe();

 private:
  std::string Path(const std::string& name) const {
    return directory_.path() + "/" + name;
  }
  void Start(const std::string& name);

  const int64_t lease_ms_;
  const TemporaryDirectory directory_;
  std::map<std::string, std::unique_ptr<SilentLink>> links_;
  std::map<std::string, std::unique_ptr<ChildProcess>> processes_;
  std::set<std::string> paused_;
  std::unique_ptr<v1::CoordinatorService::Stub> coordinator_;
};

}  // namespace gshard

#endif  // TESTS_FAULT_PROCESS_CLUSTER_H_
