#include "expert_worker/worker_commands.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "expert_worker/session_proto.h"
#include "expert_worker/training_worker_session.h"
#include "services/base/log.h"
#include "services/base/status_macros.h"
#include "services/rpc/process/command_results.h"

namespace gshard {
WorkerCommands::WorkerCommands(
    SessionTable* sessions, const ExpertService* service, WorkerMetrics metrics,
    std::function<void(bool)> on_joined,
    std::function<void(const absl::Status&)> on_refused, FaultPoints* faults)
    : sessions_(sessions),
      service_(service),
      metrics_(std::move(metrics)),
      on_joined_(std::move(on_joined)),
      on_refused_(std::move(on_refused)),
      faults_(faults) {}

absl::StatusOr<SessionTable::Lease> WorkerCommands::FindLive(
    const std::string& id) {
  absl::StatusOr<SessionTable::Lease> lease = sessions_->Find(id);
  if (lease.ok() && lease->aborted()) {
    return absl::CancelledError(absl::StrCat("session '", id, "' was aborted"));
  }
  return lease;
}

v1::CommandReply WorkerCommands::Handle(const v1::Command& command) {
  v1::CommandReply reply;
  const absl::Status status = Do(command, &reply);
  return Outcome(command, status, std::move(reply));
}

absl::Status WorkerCommands::Do(const v1::Command& command,
                                v1::CommandReply* reply) {
  switch (command.action_case()) {
    case v1::Command::kLoadSession: {
      const absl::Status loaded = DoLoad(command.load_session(), reply);
      MutexLock lock(mutex_);
      loads_.erase(SessionOf(command));
      return loaded;
    }
    case v1::Command::kUnloadSession:
    case v1::Command::kAbortSession:
      // Aborting has begun in Interrupt().
      sessions_->Unload(SessionOf(command));
      {
        MutexLock lock(mutex_);
        loads_.erase(SessionOf(command));
        buddies_.erase(SessionOf(command));
      }
      LogInfo("session released", {{"session", SessionOf(command)}});
      return absl::OkStatus();
    case v1::Command::kPrepareStep:
      return DoPrepare(command.prepare_step(), reply);
    case v1::Command::kCommitStep:
      return DoCommit(command.commit_step());
    default:
      return absl::UnimplementedError(absl::StrCat(
          "an expert worker has no action number ", command.action_case()));
  }
}

std::stop_source WorkerCommands::LoadOf(const std::string& session) {
  MutexLock lock(mutex_);
  return loads_[session];
}

absl::Status WorkerCommands::DoLoad(const v1::LoadSession& load,
                                    v1::CommandReply* reply) {
  const std::stop_source stop = LoadOf(load.session());
  ASSIGN_OR_RETURN(WorkerSessionSpec spec, WorkerSessionFromProto(load));
  const size_t experts = spec.experts.size();
  std::shared_ptr<BuddyLink> buddy;
  if (!spec.buddy_address.empty()) {
    ASSIGN_OR_RETURN(buddy, BuddyLink::Create(load.session(),
                                              spec.buddy_address, to_buddies_));
  }
  ASSIGN_OR_RETURN(const int64_t bytes,
                   sessions_->Load(load.session(), std::move(spec), stop));
  if (buddy != nullptr) {
    MutexLock lock(mutex_);
    buddies_[load.session()] = std::move(buddy);
  }
  LogInfo("session loaded", {{"session", load.session()},
                             {"training", load.training()},
                             {"experts", experts},
                             {"memory_bytes", bytes}});
  reply->mutable_session_loaded()->set_memory_bytes(bytes);
  return absl::OkStatus();
}

absl::Status WorkerCommands::DoPrepare(const v1::PrepareStep& prepare,
                                       v1::CommandReply* reply) {
  ASSIGN_OR_RETURN(const SessionTable::Lease lease,
                   FindLive(prepare.session()));
  const std::vector<int32_t> attempts(prepare.attempts().begin(),
                                      prepare.attempts().end());
  ASSIGN_OR_RETURN(TrainingWorkerSession* const session,
                   AsTraining(lease.session()));
  ASSIGN_OR_RETURN(const std::vector<SquaredNorm> norms,
                   session->PrepareStep(prepare.step(), attempts));
  *reply->mutable_step_prepared() = StepPreparedToProto(norms);
  return absl::OkStatus();
}

absl::Status WorkerCommands::DoCommit(const v1::CommitStep& commit) {
  ASSIGN_OR_RETURN(const SessionTable::Lease lease, FindLive(commit.session()));
  ASSIGN_OR_RETURN(TrainingWorkerSession* const session,
                   AsTraining(lease.session()));
  RETURN_IF_ERROR(session->CommitStep(commit.step(), commit.gradient_scale(),
                                      commit.learning_rate(),
                                      commit.skip_update()));
  metrics_.step.Set(static_cast<double>(commit.step()));
  return absl::OkStatus();
}

std::function<v1::CommandReply()> WorkerCommands::Begin(
    const v1::Command& command) {
  if (command.has_write_checkpoint()) return BeginWrite(command);
  if (!command.has_prepare_step()) return nullptr;
  auto buddy = FindBuddy(SessionOf(command));
  return buddy == nullptr ? nullptr : BeginPrepare(command, std::move(buddy));
}

std::shared_ptr<BuddyLink> WorkerCommands::FindBuddy(
    const std::string& session) {
  MutexLock lock(mutex_);
  const auto found = buddies_.find(session);
  return found == buddies_.end() ? nullptr : found->second;
}

absl::Status WorkerCommands::PrepareSums(const v1::PrepareStep& prepare,
                                         v1::CommandReply* reply,
                                         GradientList* sums) {
  RETURN_IF_ERROR(DoPrepare(prepare, reply));
  ASSIGN_OR_RETURN(const SessionTable::Lease lease,
                   FindLive(prepare.session()));
  ASSIGN_OR_RETURN(const TrainingWorkerSession* const session,
                   AsTraining(lease.session()));
  ASSIGN_OR_RETURN(*sums, session->PreparedGradients(prepare.step()));
  return absl::OkStatus();
}

std::function<v1::CommandReply()> WorkerCommands::BeginPrepare(
    const v1::Command& command, std::shared_ptr<BuddyLink> buddy) {
  auto reply = std::make_shared<v1::CommandReply>();
  auto sums = std::make_shared<GradientList>();
  const absl::Status status =
      PrepareSums(command.prepare_step(), reply.get(), sums.get());
  return [command, status, reply, sums, buddy = std::move(buddy)] {
    const absl::Status pushed =
        status.ok() ? buddy->Push(command.prepare_step().step(), *sums)
                    : status;
    sums->clear();
    return Outcome(command, pushed, *reply);
  };
}

struct WorkerCommands::Write {
  // Members are destroyed in reverse order: the shard before the lease of its
  // session.
  SessionTable::Lease lease;
  std::unique_ptr<TrainingWorkerSession::Shard> shard;
};

absl::StatusOr<WorkerCommands::Write> WorkerCommands::TakeShard(
    const v1::WriteCheckpoint& write) {
  Write work;
  ASSIGN_OR_RETURN(work.lease, FindLive(write.session()));
  ASSIGN_OR_RETURN(const TrainingWorkerSession* const session,
                   AsTraining(work.lease.session()));
  ASSIGN_OR_RETURN(
      work.shard,
      session->BeginCheckpoint(
          {.root = write.root(), .step = write.step(), .shard = write.shard()},
          write.include_replica()));
  return work;
}

std::function<v1::CommandReply()> WorkerCommands::BeginWrite(
    const v1::Command& command) {
  absl::StatusOr<Write> begun = TakeShard(command.write_checkpoint());
  if (!begun.ok()) {
    return [command, status = begun.status()] {
      return Outcome(command, status, {});
    };
  }
  auto work = std::make_shared<Write>(*std::move(begun));
  const auto write = [this, command, work] {
    v1::CommandReply reply;
    auto entries =
        work->shard->Write([&] { return work->lease.aborted(); }, faults_);
    // Before the reply, after which the next one may come.
    work->shard = nullptr;
    if (entries.ok()) {
      *reply.mutable_checkpoint_written() = CheckpointWrittenToProto(*entries);
    }
    return Outcome(command, entries.status(), std::move(reply));
  };
  if (work->shard->outlasts_updates()) return write;
  // The session's commands, and so the next commit, wait for this.
  LogInfo(
      "steps wait for a checkpoint: there is no memory for a second copy "
      "of the parameters",
      {{"session", SessionOf(command)}});
  return [reply = write()] { return reply; };
}

void WorkerCommands::Interrupt(const std::string& session) {
  // Before Abort(), which finds only what has begun.
  LoadOf(session).request_stop();
  sessions_->Abort(session);
  const auto buddy = FindBuddy(session);
  if (buddy != nullptr) buddy->Stop();
}

void WorkerCommands::OnLost() {
  if (on_joined_) on_joined_(false);
  // Routers still call the experts of served models.
  sessions_->DropTraining();
  MutexLock lock(mutex_);
  loads_.clear();
  buddies_.clear();
}

void WorkerCommands::OnAccepted(const v1::MemberAccepted&) {
  if (on_joined_) on_joined_(true);
}

void WorkerCommands::OnRefused(const absl::Status& status) {
  if (on_refused_) on_refused_(status);
}

v1::Heartbeat WorkerCommands::Load() {
  const absl::Status device = sessions_->device_status();
  if (!device.ok() && on_refused_) on_refused_(device);
  v1::Heartbeat heartbeat;
  heartbeat.set_in_flight(service_->running());
  heartbeat.set_queued(service_->waiting());
  heartbeat.set_expert_rows(service_->rows());
  heartbeat.set_memory_bytes_used(sessions_->memory_bytes_used());
  sessions_->ForEach([&](const std::string& id, WorkerSession& session) {
    if (session.training()) return;
    heartbeat.add_session_loads()->set_session(id);
  });
  return heartbeat;
}

}  // namespace gshard
