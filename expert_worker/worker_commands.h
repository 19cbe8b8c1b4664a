// WorkerCommands: an expert worker's implementation of the coordinator's
// commands.

#ifndef EXPERT_WORKER_WORKER_COMMANDS_H_
#define EXPERT_WORKER_WORKER_COMMANDS_H_

#include <functional>
#include <map>
#include <memory>
#include <stop_token>
#include <string>

#include "absl/status/status.h"
#include "expert_worker/buddy_link.h"
#include "expert_worker/expert_service.h"
#include "expert_worker/session_table.h"
#include "expert_worker/worker_metrics.h"
#include "services/base/mutex.h"
#include "services/rpc/process/member_client.h"

namespace gshard {

class WorkerCommands final : public MemberHandler {
 public:
  // None is owned. `on_joined` is called when the membership begins and ends;
  // `on_refused` if it is permanently refused, or if the device is lost, which
  // is detected with the next heartbeat. Either may be null. For `faults` see
  // services/storage/file.h.
  WorkerCommands(SessionTable* sessions, const ExpertService* service,
                 WorkerMetrics metrics,
                 std::function<void(bool)> on_joined = nullptr,
                 std::function<void(const absl::Status&)> on_refused = nullptr,
                 FaultPoints* faults = nullptr);

  // Sets the channel options for buddies. Call before the first command.
  void ReachBuddiesBy(ChannelOptions options) {
    to_buddies_ = std::move(options);
  }

  // Errors in replies: those of SessionTable and WorkerSession; NotFound for an
  // unknown session; Cancelled if it was aborted; Unimplemented for a router's
  // command.
  v1::CommandReply Handle(const v1::Command& command) override;
  // WriteCheckpoint takes its snapshot in command order and writes it while
  // other commands run. PrepareStep with a buddy sums in command order and
  // sends the sums while other commands run.
  std::function<v1::CommandReply()> Begin(const v1::Command& command) override;
  void Interrupt(const std::string& session) override;
  void OnLost() override;
  v1::Heartbeat Load() override;
  void OnAccepted(const v1::MemberAccepted& accepted) override;
  void OnRefused(const absl::Status& status) override;

 private:
  struct Write;  // a shard to be written

  absl::StatusOr<SessionTable::Lease> FindLive(const std::string& id);
  absl::Status Do(const v1::Command& command, v1::CommandReply* reply);
  // The load of a session that runs, or begins next.
  std::stop_source LoadOf(const std::string& session);
  absl::Status DoLoad(const v1::LoadSession& load, v1::CommandReply* reply);
  absl::Status DoPrepare(const v1::PrepareStep& prepare,
                         v1::CommandReply* reply);
  // The same, and sets the sums for the buddy.
  absl::Status PrepareSums(const v1::PrepareStep& prepare,
                           v1::CommandReply* reply, GradientList* sums);
  absl::StatusOr<Write> TakeShard(const v1::WriteCheckpoint& write);
  std::function<v1::CommandReply()> BeginWrite(const v1::Command& command);
  std::function<v1::CommandReply()> BeginPrepare(
      const v1::Command& command, std::shared_ptr<BuddyLink> buddy);
  // Null if there is none.
  std::shared_ptr<BuddyLink> FindBuddy(const std::string& session);
  absl::Status DoCommit(const v1::CommitStep& commit);

  SessionTable* const sessions_;
  const ExpertService* const service_;
  const WorkerMetrics metrics_;
  const std::function<void(bool)> on_joined_;
  const std::function<void(const absl::Status&)> on_refused_;
  FaultPoints* const faults_;
  ChannelOptions to_buddies_;

  Mutex mutex_;
  // By session, while it is loaded, and from Interrupt() until the session is
  // released, as the load may not have begun.
  std::map<std::string, std::stop_source> loads_ ABSL_GUARDED_BY(mutex_);
  // By session, while it is loaded.
  std::map<std::string, std::shared_ptr<BuddyLink>> buddies_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace gshard

#endif  // EXPERT_WORKER_WORKER_COMMANDS_H_
