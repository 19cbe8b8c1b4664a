// A cluster of real processes that can be killed, paused and cut off, and the
// job that they train meanwhile.

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
    // Each member reaches the coordinator by a link of its own, and routers
    // reach each worker by one, as if each were a machine of its own.
    kLinks,
    // By their sockets, as under `gshard up`: what a paused process does not
    // read, nobody reads in its place.
    kSockets,
  };

  explicit ProcessCluster(int64_t lease_ms, Wires wires = Wires::kLinks);

  // Sets the coordinator's wall clock, so many seconds from the true one.
  void SetClock(int64_t seconds);
  ~ProcessCluster();

  // "coordinator", "router-0", "worker-2", ...
  void Kill(const std::string& name);     // returns when it is gone
  void Restart(const std::string& name);  // of one that was killed
  void Pause(const std::string& name);
  void GoOn(const std::string& name);

  // With Wires::kLinks; between a member and the coordinator.
  SilentLink& ToCoordinator(const std::string& member) {
    return *links_.at(member);
  }
  // Between routers and a worker.
  SilentLink& ToWorker(const std::string& worker) {
    return *links_.at(worker + "-calls");
  }

  // These wait, a minute at most; false: it did not come about.
  bool AwaitStep(int64_t step);
  bool AwaitMember(const std::string& name, bool there);
  bool AwaitLog(const std::string& name, const std::string& text);
  // For a heartbeat that comes from now on, and says that it has nothing to do
  // if it is to be `idle`.
  bool AwaitHeartbeat(const std::string& name, bool idle = false);

  // NamesJob() with the state of its checkpoints in this cluster's folder.
  TrainingJob Job() const;
  absl::Status Submit(const TrainingJob& job);
  // Follows the job to its end, past restarts of the coordinator.
  absl::StatusOr<v1::JobProgress> AwaitEnd(const std::string& job);
  // What has become of it, with its history.
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
