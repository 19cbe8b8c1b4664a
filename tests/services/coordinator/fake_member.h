// A router or worker that does what real ones do, but makes up its gradients.

#ifndef TESTS_SERVICES_COORDINATOR_FAKE_MEMBER_H_
#define TESTS_SERVICES_COORDINATOR_FAKE_MEMBER_H_

#include <grpcpp/channel.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "proto/gshard/v1/coordinator.pb.h"
#include "services/rpc/client/tensor_transfer.h"
#include "services/rpc/process/member_client.h"
#include "services/train/parameter_store.h"

namespace gshard {

// One router or worker.
class FakeMember : public MemberHandler {
 public:
  // A command is answered by `intercept` if that returns something.
  using Intercept =
      std::function<std::optional<v1::CommandReply>(const v1::Command&)>;

  FakeMember(std::shared_ptr<grpc::Channel> channel, v1::MemberRole role,
             std::string name, Intercept intercept = nullptr,
             int64_t memory_bytes = 0);
  // One whose commands and replies somebody else carries, and its tensors.
  struct Transfer {
    std::function<absl::Status(const v1::PullParametersRequest&,
                               const std::map<std::string, ExpectedTensor>&)>
        pull;
    std::function<absl::Status(const v1::TensorFrameHeader&, NamedTensors)>
        push;
  };
  explicit FakeMember(Transfer transfer) : transfer_(std::move(transfer)) {}
  ~FakeMember() override { Leave(); }

  void Leave() {
    if (client_ != nullptr) client_->Stop();
  }

  // Wants to leave; returns when the coordinator says that it may.
  absl::Status AwaitMayLeave() {
    return client_->AwaitMayLeave(std::chrono::minutes(1));
  }

  // What a router says of the text of jobs that it loads from now on.
  void SetText(const v1::TextLoaded& text);

  // The rows of each expert that a router has had more of at each heartbeat
  // from now on, of every model that it serves.
  void SetRowsPerHeartbeat(std::vector<int64_t> rows);

  v1::CommandReply Handle(const v1::Command& command) override;
  // WriteCheckpoint, which may be intercepted in the background.
  std::function<v1::CommandReply()> Begin(const v1::Command& command) override;
  void Interrupt(const std::string&) override {}
  void OnLost() override;
  void OnAccepted(const v1::MemberAccepted& accepted) override;
  v1::Heartbeat Load() override;

  // Commands so far, as "load demo/1", "assign 1/0/0" (step, microbatch,
  // attempt), "validate 1/0/0", "prepare 1", "commit 1", "write 1", "unload
  // demo/1", ...
  std::vector<std::string> commands() const;
  // Returns once `command` has come.
  void WaitFor(const std::string& command) const;
  v1::LoadSession last_load() const;
  // What the coordinator said when it took the member; waits for it.
  v1::MemberAccepted accepted() const;

 private:
  struct Session {
    v1::LoadSession load;
    std::unique_ptr<ParameterStore> store;    // of workers that train
    std::unique_ptr<ParameterStore> replica;  // with buddies
    GradientList gradients;
    int64_t step = 0;
    std::vector<int64_t> expert_rows;  // of routers that serve
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

  // Over gRPC.
  static Transfer Over(std::shared_ptr<grpc::Channel> channel);

  const Transfer transfer_;
  const Intercept intercept_;
  mutable std::mutex mutex_;
  mutable std::condition_variable came_;
  std::vector<std::string> commands_;           // guarded by mutex_
  std::map<std::string, Session> sessions_;     // guarded by mutex_
  v1::LoadSession last_load_;                   // guarded by mutex_
  std::optional<v1::MemberAccepted> accepted_;  // guarded by mutex_
  std::optional<v1::TextLoaded> text_;          // guarded by mutex_
  std::vector<int64_t> rows_;  // a heartbeat; guarded by mutex_
  std::unique_ptr<MemberClient> client_;
};

}  // namespace gshard

#endif  // TESTS_SERVICES_COORDINATOR_FAKE_MEMBER_H_
