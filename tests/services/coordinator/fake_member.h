// A router or worker that acts like a real one but makes up its gradients.

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
#include <set>
#include <string>
#include <vector>

#include "proto/gshard/v1/coordinator.pb.h"
#include "services/rpc/client/tensor_transfer.h"
#include "services/rpc/process/member_client.h"
#include "services/train/parameter_store.h"

namespace gshard {

class FakeMember : public MemberHandler {
 public:
  // Answers a command in place of the member if it returns a reply.
  using Intercept =
      std::function<std::optional<v1::CommandReply>(const v1::Command&)>;

  FakeMember(std::shared_ptr<grpc::Channel> channel, v1::MemberRole role,
             std::string name, Intercept intercept = nullptr,
             int64_t memory_bytes = 0);
  // How tensors reach the coordinator if the test itself carries the member's
  // commands and replies.
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

  // Says that it leaves, as a router does that finishes its calls.
  void SayLeaving() { client_->SayLeaving(); }

  // Asks to leave; returns when the coordinator allows it.
  absl::Status AwaitMayLeave() {
    return client_->AwaitMayLeave(std::chrono::minutes(1));
  }

  // Sets what a router reports of the text of jobs that it loads later.
  void SetText(const v1::TextLoaded& text);

  // Adds `rows` to a router's row counts by expert at each later heartbeat, for
  // every model that it serves.
  void SetRowsPerHeartbeat(std::vector<int64_t> rows);

  v1::CommandReply Handle(const v1::Command& command) override;
  // Handles WriteCheckpoint, which may be intercepted in the background.
  std::function<v1::CommandReply()> Begin(const v1::Command& command) override;
  void Interrupt(const std::string& session) override;
  void OnLost() override;
  void OnAccepted(const v1::MemberAccepted& accepted) override;
  v1::Heartbeat Load() override;

  // Commands so far, as "load demo/1", "assign 1/0/0" (step, microbatch,
  // attempt), "validate 1/0/0", "prepare 1", "commit 1", "write 1", "unload
  // demo/1", ...
  std::vector<std::string> commands() const;
  // Returns once `command` has arrived.
  void WaitFor(const std::string& command) const;
  // Returns once the session is to end at once, whatever runs.
  void WaitForInterrupt(const std::string& session) const;
  v1::LoadSession last_load() const;
  // The coordinator's answer to the registration; waits for it.
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

  // Transfers over gRPC.
  static Transfer Over(std::shared_ptr<grpc::Channel> channel);

  const Transfer transfer_;
  const Intercept intercept_;
  mutable std::mutex mutex_;
  mutable std::condition_variable came_;
  std::vector<std::string> commands_;           // guarded by mutex_
  std::set<std::string> interrupted_;           // guarded by mutex_
  std::map<std::string, Session> sessions_;     // guarded by mutex_
  v1::LoadSession last_load_;                   // guarded by mutex_
  std::optional<v1::MemberAccepted> accepted_;  // guarded by mutex_
  std::optional<v1::TextLoaded> text_;          // guarded by mutex_
  std::vector<int64_t> rows_;  // per heartbeat; guarded by mutex_
  std::unique_ptr<MemberClient> client_;
};

}  // namespace gshard

#endif  // TESTS_SERVICES_COORDINATOR_FAKE_MEMBER_H_
