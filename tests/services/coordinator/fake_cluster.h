// A coordinator in this process, and members that do what real ones do, but
// make up their gradients: the gradient of a tensor is a function of its name,
// the step and the microbatch, so that a test can tell what must come out.

#ifndef TESTS_SERVICES_COORDINATOR_FAKE_CLUSTER_H_
#define TESTS_SERVICES_COORDINATOR_FAKE_CLUSTER_H_

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "proto/gshard/v1/coordinator.grpc.pb.h"
#include "services/coordinator/coordinator.h"
#include "services/coordinator/coordinator_service.h"
#include "services/rpc/member_client.h"
#include "services/rpc/server.h"
#include "tests/integration/temporary_directory.h"
#include "tests/services/checkpoint/scratch_directory.h"

namespace gshard {

// Of a logical tensor of a microbatch.
Tensor FakeGradient(const std::string& name, const Dims& dims, int64_t step,
                    int32_t microbatch);

// What a fake router says of a microbatch.
v1::MicrobatchStats FakeStats(const ModelConfig& model, int64_t step,
                              int32_t microbatch);

// One router or worker.
class FakeMember : public MemberHandler {
 public:
  // A command is answered by `intercept` if that returns something.
  using Intercept =
      std::function<std::optional<v1::CommandReply>(const v1::Command&)>;

  FakeMember(std::shared_ptr<grpc::Channel> channel, v1::MemberRole role,
             std::string name, Intercept intercept = nullptr);
  ~FakeMember() override { Leave(); }

  void Leave() { client_->Stop(); }

  v1::CommandReply Handle(const v1::Command& command) override;
  // WriteCheckpoint, which may be intercepted in the background.
  std::function<v1::CommandReply()> Begin(const v1::Command& command) override;
  void Interrupt(const std::string&) override {}
  void OnLost() override;
  v1::Heartbeat Load() override { return {}; }

  // Commands so far, as "load demo/1", "assign 1/0/0" (step, microbatch,
  // attempt), "prepare 1", "commit 1", "write 1", "unload demo/1", ...
  std::vector<std::string> commands() const;
  // Returns once `command` has come.
  void WaitFor(const std::string& command) const;
  v1::LoadSession last_load() const;

 private:
  struct Session {
    v1::LoadSession load;
    std::unique_ptr<ParameterStore> store;    // of workers that train
    std::unique_ptr<ParameterStore> replica;  // with buddies
    GradientList gradients;
    int64_t step = 0;
  };

  absl::StatusOr<v1::CommandReply> Do(const v1::Command& command);
  absl::Status LoadWorker(const v1::LoadSession& load, Session* session);
  absl::Status RunMicrobatch(const v1::AssignMicrobatch& assign,
                             v1::CommandReply* reply);
  void Prepare(const v1::PrepareStep& prepare, Session* session,
               v1::StepPrepared* prepared);
  void Commit(const v1::CommitStep& commit, Session* session);
  absl::StatusOr<v1::CommandReply> Write(
      const v1::WriteCheckpoint& write,
      const std::vector<NamedTensor>& tensors);

  const std::shared_ptr<grpc::Channel> channel_;
  const Intercept intercept_;
  mutable std::mutex mutex_;
  mutable std::condition_variable came_;
  std::vector<std::string> commands_;        // guarded by mutex_
  std::map<std::string, Session> sessions_;  // guarded by mutex_
  v1::LoadSession last_load_;                // guarded by mutex_
  std::unique_ptr<MemberClient> client_;
};

class FakeCluster {
 public:
  // `keep`: its state outlives the coordinator.
  explicit FakeCluster(CoordinatorOptions options = {}, bool keep = false);
  ~FakeCluster();

  // The coordinator ends at once, without a word to anybody, and another one
  // starts in its place. Members join it by themselves.
  void RestartCoordinator();

  FakeMember& AddRouter(const std::string& name,
                        FakeMember::Intercept intercept = nullptr);
  FakeMember& AddWorker(const std::string& name,
                        FakeMember::Intercept intercept = nullptr);

  v1::CoordinatorService::Stub& stub() { return *stub_; }
  std::shared_ptr<grpc::Channel> channel() { return channel_; }
  Coordinator& coordinator() { return *coordinator_; }

  absl::Status Submit(const TrainingJob& job, bool resume = false);
  absl::Status Cancel(const std::string& job);
  absl::StatusOr<std::string> LoadModel(const std::string& name,
                                        const std::string& version,
                                        const std::string& directory);
  absl::Status UnloadModel(const std::string& session);
  v1::DescribeResponse Describe(bool include_experts = false);

  // Follows the job to its end, or until `enough`; returns all that came.
  std::vector<v1::JobProgress> Watch(
      const std::string& job,
      const std::function<bool(const v1::JobProgress&)>& enough = nullptr);

  // A job of a tiny model, with files in `scratch`.
  TrainingJob MakeJob(const std::string& name = "demo") const;
  // A tokenizer for it that is trained once a process.
  static const std::string& TokenizerPath();

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

// All parameters of the job after `steps` steps of the fake gradients, of which
// `skipped` changed nothing.
std::unique_ptr<ParameterStore> ExpectedParameters(
    const TrainingJob& job, int64_t steps,
    const std::set<int64_t>& skipped = {});

// The checkpoint of `step` holds these parameters, bit for bit.
void ExpectTrained(TrainingJob job, int64_t step,
                   const std::set<int64_t>& skipped = {});

}  // namespace gshard

#endif  // TESTS_SERVICES_COORDINATOR_FAKE_CLUSTER_H_
