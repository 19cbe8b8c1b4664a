#include "router/router_sessions.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "router/workers/connect_replicas.h"
#include "services/base/log.h"
#include "services/base/status_macros.h"
#include "services/config/model_config_proto.h"
#include "services/config/training_job_proto.h"
#include "services/rpc/process/command_results.h"
#include "services/rpc/process/member_client.h"
#include "services/segments/segments_key.h"
#include "services/train/parameter_source.h"

namespace gshard {

RouterSessions::RouterSessions(ReachCoordinator reach_coordinator,
                               ChannelOptions to_workers, ModelTable* models,
                               RouterMetrics metrics,
                               RendezvousFactory make_rendezvous,
                               const Tracer& tracer,
                               const SharingOptions& sharing, Device* device,
                               FaultPoints* faults)
    : reach_coordinator_(std::move(reach_coordinator)),
      models_(models),
      metrics_(std::move(metrics)),
      make_rendezvous_(std::move(make_rendezvous)),
      device_(device),
      faults_(faults),
      to_served_(to_workers, tracer, sharing),
      to_training_(std::move(to_workers), tracer, sharing) {}

v1::CommandReply RouterSessions::Handle(const v1::Command& command) {
  v1::CommandReply reply;
  const absl::Status status = Do(command, &reply);
  return Outcome(command, status, std::move(reply));
}

absl::Status RouterSessions::Do(const v1::Command& command,
                                v1::CommandReply* reply) {
  switch (command.action_case()) {
    case v1::Command::kLoadSession: {
      ASSIGN_OR_RETURN(*reply->mutable_session_loaded(),
                       Load(command.load_session()));
      return absl::OkStatus();
    }
    case v1::Command::kUnloadSession:
      return Remove(SessionOf(command), /*wait=*/true);
    case v1::Command::kAbortSession:
      return Remove(SessionOf(command), /*wait=*/false);
    case v1::Command::kUpdatePlacement:
      return Update(command.update_placement());
    case v1::Command::kAssignMicrobatch: {
      const v1::AssignMicrobatch& assignment = command.assign_microbatch();
      ASSIGN_OR_RETURN(const auto training, FindTraining(assignment.session()));
      ASSIGN_OR_RETURN(*reply->mutable_microbatch_done()->mutable_stats(),
                       training->RunMicrobatch(assignment));
      return absl::OkStatus();
    }
    case v1::Command::kConnectRouters:
    case v1::Command::kPrepareStep:
    case v1::Command::kCommitStep:
      return DoDense(command, reply);
    default:
      return absl::InvalidArgumentError(absl::StrCat(
          "a router has no action number ", command.action_case()));
  }
}

absl::StatusOr<std::shared_ptr<TrainingSession>> RouterSessions::FindTraining(
    const std::string& session) const {
  Entry entry = Find(session);
  if (entry.training != nullptr) return std::move(entry.training);
  return absl::NotFoundError(
      absl::StrCat("the router has no training session '", session, "'"));
}

absl::StatusOr<std::shared_ptr<TrainingSession>> RouterSessions::FindDense(
    const std::string& session) const {
  ASSIGN_OR_RETURN(auto training, FindTraining(session));
  if (training->dense() != nullptr) return training;
  return absl::FailedPreconditionError(
      "the session's dense parameters are the coordinator's");
}

absl::Status RouterSessions::DoDense(const v1::Command& command,
                                     v1::CommandReply* reply) {
  ASSIGN_OR_RETURN(const auto training, FindDense(SessionOf(command)));
  DenseShard* const dense = training->dense();
  if (command.has_connect_routers()) {
    const auto& addresses = command.connect_routers().addresses();
    return dense->Connect(
        std::vector<std::string>(addresses.begin(), addresses.end()));
  }
  if (command.has_prepare_step()) {
    const v1::PrepareStep& prepare = command.prepare_step();
    ASSIGN_OR_RETURN(const std::vector<SquaredNorm> norms,
                     dense->PrepareStep(prepare.step(), prepare.attempts(),
                                        prepare.ran_by()));
    *reply->mutable_step_prepared() = StepPreparedToProto(norms);
    return absl::OkStatus();
  }
  const v1::CommitStep& commit = command.commit_step();
  return dense->CommitStep(commit.step(), commit.gradient_scale(),
                           commit.learning_rate(), commit.skip_update());
}

struct RouterSessions::Write {
  // Members are destroyed in reverse order: the snapshot before the session's
  // shard, and both before Remove() goes on.
  std::shared_ptr<void> counted;  // in writing_
  std::shared_ptr<TrainingSession> session;
  ParameterShard::Snapshot snapshot;
};

absl::StatusOr<RouterSessions::Write> RouterSessions::TakeShard(
    const std::string& session, int64_t step) {
  Write work;
  ASSIGN_OR_RETURN(work.session, FindDense(session));
  ASSIGN_OR_RETURN(work.snapshot, work.session->dense()->TakeSnapshot(step));
  MutexLock lock(mutex_);
  writing_.insert(session);
  work.counted = std::shared_ptr<void>(nullptr, [this, session](void*) {
    MutexLock counted(mutex_);
    writing_.erase(writing_.find(session));
    written_.NotifyAll();
  });
  return work;
}

std::function<v1::CommandReply()> RouterSessions::Begin(
    const v1::Command& command) {
  if (!command.has_write_checkpoint()) return nullptr;
  const v1::WriteCheckpoint& write = command.write_checkpoint();
  absl::StatusOr<Write> begun = TakeShard(write.session(), write.step());
  if (!begun.ok()) {
    return [command, status = begun.status()] {
      return Outcome(command, status, {});
    };
  }
  const ShardTarget target = {
      .root = write.root(), .step = write.step(), .shard = write.shard()};
  auto work = std::make_shared<std::optional<Write>>(*std::move(begun));
  return [this, command, target, work] {
    const auto entries = (*work)->session->dense()->WriteCheckpoint(
        target, (*work)->snapshot, faults_);
    // Before the reply, after which the next one may come.
    work->reset();
    v1::CommandReply reply;
    if (entries.ok()) {
      *reply.mutable_checkpoint_written() = CheckpointWrittenToProto(*entries);
    }
    return Outcome(command, entries.status(), std::move(reply));
  };
}

absl::StatusOr<RouterSessions::Entry> RouterSessions::Make(
    const v1::LoadSession& load, std::stop_token stop) {
  RETURN_IF_ERROR(CheckNotStopped(stop));
  if (!load.has_router()) {
    return absl::InvalidArgumentError(
        "load_session.router: required for a router");
  }
  const v1::RouterSession& router = load.router();
  ASSIGN_OR_RETURN(const ModelConfig model,
                   ModelConfigFromProto(router.model()));
  Entry entry;
  if (load.training()) {
    ASSIGN_OR_RETURN(auto workers,
                     ConnectReplicas(router.placement(), load.session(),
                                     model.experts, to_training_));
    RETURN_IF_ERROR(CheckHeldOnce(*workers, model.experts));
    ASSIGN_OR_RETURN(TrainingJob job, TrainingJobFromProto(router.job()));
    job.model = model;
    if (router.step() < 0 || router.step() > job.steps) {
      return absl::InvalidArgumentError(
          absl::StrCat("load_session.router.step: expected 0 to ", job.steps,
                       ", got ", router.step()));
    }
    std::shared_ptr<DenseShard> dense;
    if (router.has_dense_group()) {
      ASSIGN_OR_RETURN(dense, MakeDenseShard(router.dense_group(), job,
                                             make_rendezvous_, device_, stop));
    }
    // The coordinator may have another address than that of the last job.
    ASSIGN_OR_RETURN(auto coordinator, reach_coordinator_());
    ASSIGN_OR_RETURN(entry.training,
                     TrainingSession::Create(
                         {.session = load.session(),
                          .job = std::move(job),
                          .tokenizer_directory = router.tokenizer_directory(),
                          .done_steps = router.step(),
                          .workers = std::move(workers),
                          .dense = std::move(dense),
                          .segments_key = router.segments_key(),
                          .device = device_},
                         std::move(coordinator), metrics_, stop));
  } else {
    ASSIGN_OR_RETURN(auto replicas,
                     ConnectReplicas(router.placement(), load.session(),
                                     model.experts, to_served_));
    ASSIGN_OR_RETURN(entry.serving,
                     ServingSession::Create(
                         {.session = load.session(),
                          .model = model,
                          .checkpoint_directory = router.checkpoint_directory(),
                          .replicas = replicas,
                          .segments_key = router.segments_key(),
                          .device = device_,
                          .stop = stop},
                         metrics_));
    // Verifies which experts are reachable before the first call.
    RETURN_IF_ERROR(entry.serving->replicas().Verify(*replicas));
    entry.serving->NoteLive();
  }
  return entry;
}

absl::StatusOr<v1::SessionLoaded> RouterSessions::Load(
    const v1::LoadSession& load) {
  const std::string& session = load.session();
  if (session.empty()) {
    return absl::InvalidArgumentError("load_session.session: required");
  }
  std::stop_source stop;
  {
    MutexLock lock(mutex_);
    const auto found = sessions_.find(session);
    if (found != sessions_.end()) {
      if (found->second.serving != nullptr) {
        RETURN_IF_ERROR(
            CheckSegmentsKey(load.router().segments_key(),
                             found->second.serving->segments_key()));
        const std::string& from = found->second.serving->checkpoint_directory();
        if (load.router().checkpoint_directory() != from) {
          return absl::AbortedError(
              absl::StrCat("session '", session, "' is loaded from ", from));
        }
        found->second.serving->replicas().AcceptAnyVersion();
        if (!load.router().standby()) models_->MakeCurrent(session);
      }
      return absl::AlreadyExistsError(
          absl::StrCat("session '", session, "' is loaded"));
    }
    stop = stops_[session];
  }
  absl::StatusOr<Entry> made = Make(load, stop.get_token());
  {
    MutexLock lock(mutex_);
    stops_.erase(session);
  }
  RETURN_IF_ERROR(made.status());
  Entry& entry = *made;
  v1::SessionLoaded loaded;
  loaded.set_memory_bytes(entry.training ? entry.training->memory_bytes()
                                         : entry.serving->memory_bytes());
  if (entry.training != nullptr) {
    *loaded.mutable_text() = entry.training->text().Describe();
    if (entry.training->dense() != nullptr) {
      for (const std::string& address : entry.training->dense()->addresses()) {
        loaded.add_addresses(address);
      }
    }
  }
  MutexLock lock(mutex_);
  if (entry.serving != nullptr) {
    RETURN_IF_ERROR(models_->Add(entry.serving, load.router().standby()));
  }
  sessions_[session] = std::move(entry);
  LogInfo("session loaded",
          {{"session", session}, {"bytes", loaded.memory_bytes()}});
  return loaded;
}

absl::Status RouterSessions::Update(const v1::UpdatePlacement& update) {
  const Entry entry = Find(update.session());
  if (entry.serving == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("the router serves no model '", update.session(), "'"));
  }
  ReplicaSet& replicas = entry.serving->replicas();
  ASSIGN_OR_RETURN(const auto group,
                   ConnectReplicas(update.placement(), update.session(),
                                   replicas.num_experts(), to_served_));
  // Connects to new workers before calls are sent there. Unresponsive ones are
  // avoided.
  ReplicaGroup added;
  const auto present = replicas.group();
  for (const ReplicaHolding& holding : group->holdings) {
    const bool known = std::any_of(
        present->holdings.begin(), present->holdings.end(),
        [&](const ReplicaHolding& other) {
          return other.stub == holding.stub && other.session == holding.session;
        });
    if (!known) added.holdings.push_back(holding);
  }
  const absl::Status verified = replicas.Verify(added);
  if (!verified.ok()) {
    LogWarning("a placement has workers that do not answer",
               {{"session", update.session()}, {"status", verified}});
  }
  RETURN_IF_ERROR(replicas.Update(group));
  entry.serving->NoteLive();
  if (update.current()) models_->MakeCurrent(update.session());
  LogInfo("placement changed", {{"session", update.session()},
                                {"version", group->version},
                                {"parts", group->holdings.size()}});
  to_served_.Prune();
  return absl::OkStatus();
}

RouterSessions::Entry RouterSessions::Find(const std::string& session) const {
  MutexLock lock(mutex_);
  const auto found = sessions_.find(session);
  return found == sessions_.end() ? Entry() : found->second;
}

void RouterSessions::Stop(const Entry& entry) {
  if (entry.training != nullptr) entry.training->Interrupt();
  if (entry.serving != nullptr) entry.serving->Interrupt();
}

absl::Status RouterSessions::Remove(const std::string& session, bool wait) {
  Entry entry = Find(session);
  std::stop_source stop;
  if (wait) {
    MutexLock lock(mutex_);
    stop = stops_[session];
  } else {
    Stop(entry);
  }
  // Also a model that could not be loaded: it may be expected.
  if (entry.training == nullptr &&
      !models_->Remove(session, wait, stop.get_token())) {
    MutexLock lock(mutex_);
    stops_.erase(session);
    return absl::CancelledError(absl::StrCat(
        "session '", session, "' still has calls; they are not ended"));
  }
  {
    MutexLock lock(mutex_);
    // Until then Interrupt() must find it.
    written_.Wait(lock, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return writing_.count(session) == 0;
    });
    sessions_.erase(session);
    stops_.erase(session);
  }
  entry = {};
  to_served_.Prune();
  to_training_.Prune();
  return absl::OkStatus();
}

void RouterSessions::Interrupt(const std::string& session) {
  std::stop_source stop;
  {
    MutexLock lock(mutex_);
    stop = stops_[session];
  }
  stop.request_stop();
  const Entry entry = Find(session);
  if (entry.training != nullptr) Stop(entry);
}

void RouterSessions::DropTraining() {
  std::map<std::string, Entry> dropped;
  {
    MutexLock lock(mutex_);
    stops_.clear();
    for (auto it = sessions_.begin(); it != sessions_.end();) {
      const auto entry = it++;
      if (entry->second.training == nullptr) continue;
      dropped.insert(sessions_.extract(entry));
    }
  }
  for (const auto& [id, entry] : dropped) Stop(entry);
  dropped.clear();
  to_training_.Prune();
}

std::vector<v1::SessionLoad> RouterSessions::Loads() const {
  std::vector<v1::SessionLoad> loads;
  MutexLock lock(mutex_);
  for (const auto& [id, entry] : sessions_) {
    if (entry.serving == nullptr) continue;
    v1::SessionLoad& load = loads.emplace_back();
    load.set_session(id);
    const std::vector<int64_t> rows = entry.serving->expert_rows();
    load.mutable_expert_rows()->Add(rows.begin(), rows.end());
  }
  return loads;
}

bool RouterSessions::ready() const {
  MutexLock lock(mutex_);
  bool any = false;
  for (const auto& [id, entry] : sessions_) {
    if (entry.serving == nullptr || !models_->HasName(id)) continue;
    any = true;
    if (!entry.serving->Ready()) return false;
  }
  return any;
}

int64_t RouterSessions::memory_bytes() const {
  MutexLock lock(mutex_);
  int64_t bytes = 0;
  for (const auto& [id, entry] : sessions_) {
    bytes += entry.training ? entry.training->memory_bytes()
                            : entry.serving->memory_bytes();
  }
  return bytes;
}

}  // namespace gshard
