// A coordinator in this process, and members that act like real ones but make
// up their gradients.

#ifndef TESTS_SERVICES_COORDINATOR_FAKE_CLUSTER_H_
#define TESTS_SERVICES_COORDINATOR_FAKE_CLUSTER_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "proto/gshard/v1/coordinator.grpc.pb.h"
#include "services/coordinator/coordinator.h"
#include "services/coordinator/coordinator_service.h"
#include "services/rpc/server/server.h"
#include "tests/integration/temporary_directory.h"
#include "tests/services/coordinator/fake_job.h"
#include "tests/services/coordinator/fake_member.h"
#include "tests/services/storage/scratch_directory.h"

namespace gshard {

class FakeCluster {
 public:
  // With `keep`, its state outlives the coordinator.
  explicit FakeCluster(CoordinatorOptions options = {}, bool keep = false);
  ~FakeCluster();

  // Ends the coordinator at once without notifying members and starts another
  // one, which members join by themselves. `meanwhile` runs while there is
  // none.
  void RestartCoordinator(const std::function<void()>& meanwhile = nullptr);

  FakeMember& AddRouter(const std::string& name,
                        FakeMember::Intercept intercept = nullptr);
  // The worker offers `memory_bytes`; 0: it does not say.
  FakeMember& AddWorker(const std::string& name,
                        FakeMember::Intercept intercept = nullptr,
                        int64_t memory_bytes = 0);

  v1::CoordinatorService::Stub& stub() { return *stub_; }
  std::shared_ptr<grpc::Channel> channel() { return channel_; }
  Coordinator& coordinator() { return *coordinator_; }
  // Of the coordinators that RestartCoordinator() starts.
  CoordinatorOptions& options() { return options_; }

  absl::Status Submit(const TrainingJob& job, bool resume = false);
  absl::Status Cancel(const std::string& job);
  absl::StatusOr<std::string> LoadModel(
      const std::string& name, const std::string& version,
      const std::string& directory, int32_t replicas = 0,
      v1::ModelConfig::ComputeType weights = {});
  absl::Status UnloadModel(const std::string& session);
  v1::DescribeResponse Describe(bool include_experts = false);

  // Follows the job to its end, or until `enough`; returns all progress.
  std::vector<v1::JobProgress> Watch(
      const std::string& job,
      const std::function<bool(const v1::JobProgress&)>& enough = nullptr);

  // A job of a tiny model, with files in `scratch`.
  TrainingJob MakeJob(const std::string& name = "demo") const {
    return MakeFakeJob(name, scratch);
  }

  ScratchDirectory scratch;

 private:
  void StartCoordinator();

  CoordinatorOptions options_;
  const bool keep_;
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<CoordinatorServiceImpl> service_;
  const TemporaryDirectory directory_;
  std::unique_ptr<ServerShell> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::CoordinatorService::Stub> stub_;
  std::vector<std::unique_ptr<FakeMember>> members_;
};

}  // namespace gshard

#endif  // TESTS_SERVICES_COORDINATOR_FAKE_CLUSTER_H_
