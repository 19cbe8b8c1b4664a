#include "services/coordinator/training/job_attempt.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/log.h"
#include "services/base/status_macros.h"
#include "services/coordinator/training/job_recovery.h"
#include "services/train/job_options.h"

namespace gshard {
namespace {

std::unique_ptr<DenseReduction> ReductionOf(
    const JobContext& context, const TrainingStart& start,
    const std::vector<Member>& routers) {
  const ReduceWay way = context.settings.reduce;
  if (way == ReduceWay::kCoordinator) return nullptr;
  std::vector<MemberKey> owners;
  for (const Member& router : routers) owners.push_back(KeyOf(router));
  return std::make_unique<DenseReduction>(way, context.job, start,
                                          std::move(owners));
}

}  // namespace

JobAttempt::JobAttempt(JobContext* context, SessionPlan plan,
                       TrainingStart start, const std::vector<Member>& routers)
    : context_(context),
      plan_(std::move(plan)),
      start_(std::move(start)),
      schedule_(MakeSchedule(context->job)),
      reduction_(ReductionOf(*context, start_, routers)),
      holders_(WorkersOf(plan_, context->job.model)),
      committed_(start_.step),
      step_(start_.step) {
  if (reduction_ == nullptr) return;
  for (ShardHolder& owner : reduction_->holders()) {
    holders_.push_back(std::move(owner));
  }
}

absl::Status JobAttempt::Run(std::unique_ptr<CheckpointReader> opened) {
  std::shared_ptr<const CheckpointReader> checkpoint = std::move(opened);
  const absl::Status loaded = Load(checkpoint);
  if (absl::IsDataLoss(loaded) && checkpoint != nullptr) {
    return Leave(Exit::kDamaged, loaded);
  }
  RETURN_IF_ERROR(loaded);
  checkpoint = nullptr;
  trained_ = true;
  context_->stops_at_once = false;
  const absl::Status done = Train();
  switch (exit_) {
    case Exit::kLost:
    case Exit::kAway:
    case Exit::kDeserted:
      return Rescue(done);
    default:
      return done;
  }
}

absl::Status JobAttempt::Load(
    const std::shared_ptr<const CheckpointReader>& checkpoint) {
  Publish();
  MemberCommands commands;
  for (size_t w = 0; w < plan_.workers.size(); ++w) {
    AddCommand(commands, plan_.workers[w])
        .mutable_load_session()
        ->Swap(&plan_.worker_loads[w]);
  }
  plan_.worker_loads.clear();
  const auto loads = context_->Send(std::move(commands));
  // Meanwhile, load the dense parameters.
  if (reduction_ == nullptr) RETURN_IF_ERROR(LoadDense(checkpoint));
  RETURN_IF_ERROR(Await([&] { return loads->decided(); }));
  if (const absl::Status& error = loads->error; !error.ok()) {
    if (DoesWithout(plan_.workers[loads->failed], MemberRole::kExpertWorker,
                    error)) {
      return Leave(Exit::kChanged, error);
    }
    // The coordinator has opened the checkpoint that the worker does not find.
    return OnMemberStorageFailed(
        absl::IsNotFound(error) ? absl::UnavailableError(absl::StrCat(
                                      error.message(), "; is its disk there?"))
                                : error);
  }
  routers_ = std::make_unique<JobRouters>(context_, plan_.router_load,
                                          reduction_.get());
  routers_->Reconcile();
  if (reduction_ == nullptr) {
    const size_t enough = context_->begun ? 1 : context_->job.min_routers;
    return Await([&] { return routers_->ready().size() >= enough; });
  }
  // Connect the routers that own dense parameters.
  RETURN_IF_ERROR(Await([&] { return reduction_->all_loaded(); }));
  return AwaitAll(context_->Send(reduction_->Connect(context_->session())))
      .status();
}

absl::Status JobAttempt::LoadDense(
    const std::shared_ptr<const CheckpointReader>& checkpoint) {
  const auto loaded = context_->OnDisk<std::unique_ptr<ParameterStore>>(
      [checkpoint, model = context_->job.model,
       optimizer = context_->job.optimizer, seed = context_->job.seed,
       weights_only = start_.weights_only, stop = stop_loading_.get_token()]()
          -> absl::StatusOr<std::unique_ptr<ParameterStore>> {
        auto store = std::make_unique<ParameterStore>(
            ParametersOf(model, /*per_expert=*/false), std::vector<int32_t>(),
            MakeOptimizer(optimizer));
        RETURN_IF_ERROR(
            store->Load(checkpoint.get(), seed, stop, weights_only));
        return store;
      });
  RETURN_IF_ERROR(Await([&] { return loaded->has_value(); }));
  absl::StatusOr<std::unique_ptr<ParameterStore>>& store = **loaded;
  if (!store.ok()) return OnStorageFailed(store.status());
  dense_ = std::make_shared<DenseParameters>(
      context_->session(), *std::move(store), start_.step, context_->env.sums);
  Publish();
  return absl::OkStatus();
}

void JobAttempt::Publish() const {
  v1::SessionInfo info;
  info.set_session(context_->session());
  info.set_training(true);
  info.set_state(trained_ ? v1::SessionInfo::READY : v1::SessionInfo::LOADING);
  *info.mutable_placement() = plan_.placement();
  if (routers_ != nullptr) {
    for (const MemberKey& router : routers_->ready()) {
      info.add_routers(router.name);
    }
  }
  info.set_checkpoint_directory(start_.checkpoint_directory);
  info.set_reduce(std::string(ReduceWayName(context_->settings.reduce)));
  context_->status->Publish(std::move(info), dense_);
}

absl::Status JobAttempt::Leave(Exit exit, const absl::Status& why) {
  exit_ = exit;
  return why;
}

absl::Status JobAttempt::Await(const std::function<bool()>& done,
                               MonotonicTime until) {
  while (true) {
    RETURN_IF_ERROR(context_->CheckWanted());
    RETURN_IF_ERROR(PollCheckpoint());
    if (context_->mailbox->TakeMembersChanged()) {
      RETURN_IF_ERROR(CheckMembers());
    }
    RETURN_IF_ERROR(PollRouters());
    if (done() || context_->env.clock() >= until) return absl::OkStatus();
    context_->mailbox->Next(
        routers_ == nullptr ? until : std::min(until, routers_->next()));
  }
}

absl::StatusOr<std::vector<v1::CommandReply>> JobAttempt::AwaitAll(
    std::shared_ptr<const MemberReplies> replies) {
  RETURN_IF_ERROR(Await([&] { return replies->decided(); }));
  if (!replies->error.ok()) return OnMemberFailed(replies->error);
  return replies->replies;
}

bool JobAttempt::DoesWithout(const MemberKey& member, MemberRole role,
                             const absl::Status& status) {
  // A job begins with all that it asks for. A loss is made up for, and the
  // coordinator looks into damage.
  if (!context_->begun || absl::IsUnavailable(status) ||
      absl::IsDataLoss(status)) {
    return false;
  }
  const std::vector<Member> usable = context_->Usable(role);
  if (std::none_of(usable.begin(), usable.end(), [&](const Member& other) {
        return KeyOf(other) != member;
      })) {
    return false;
  }
  LogError("the job continues without a member that cannot load it",
           {{"job", context_->job.name}, {"status", status}});
  context_->unfit.insert(member);
  return true;
}

absl::Status JobAttempt::OnMemberFailed(const absl::Status& status, Exit exit) {
  // Has a better error for a lost worker.
  RETURN_IF_ERROR(CheckMembers());
  // A member that lacks memory or disk space will lack it again.
  if (!IsPassing(status) || absl::IsResourceExhausted(status)) return status;
  return Leave(exit, status);
}

absl::Status JobAttempt::OnMemberStorageFailed(const absl::Status& status) {
  return OnMemberFailed(
      status, absl::IsUnavailable(status) ? Exit::kAway : Exit::kLost);
}

absl::Status JobAttempt::OnStorageFailed(const absl::Status& status) {
  return Leave(absl::IsUnavailable(status) ? Exit::kAway : Exit::kFailed,
               status);
}

absl::Status JobAttempt::CheckMembers() {
  // No member is needed any more for the last checkpoint.
  if (last_step_ && writing_ != nullptr && writing_->step() == step_ &&
      writing_->has_all_shards()) {
    return absl::OkStatus();
  }
  const std::set<MemberKey> members = context_->Members();
  for (const ShardHolder& holder : holders_) {
    if (members.count(holder.member) > 0) continue;
    const bool worker = holder.role == MemberRole::kExpertWorker;
    return Leave(Exit::kLost, absl::UnavailableError(absl::StrCat(
                                  NameOf(holder), " was lost with its ",
                                  worker ? "experts" : "dense parameters",
                                  " at step ", step_)));
  }
  if (routers_ == nullptr) return absl::OkStatus();
  routers_->Reconcile();
  Publish();
  return absl::OkStatus();
}

absl::Status JobAttempt::PollRouters() {
  if (routers_ == nullptr) return absl::OkStatus();
  const std::vector<MemberKey> before = routers_->ready();
  const absl::Status status = routers_->Poll(trained_);
  if (!status.ok() && reduction_ != nullptr &&
      DoesWithout(routers_->failed(), MemberRole::kRouter, status)) {
    return Leave(Exit::kChanged, status);
  }
  if (absl::IsUnavailable(status)) return OnMemberStorageFailed(status);
  RETURN_IF_ERROR(status);
  if (routers_->ready() != before) Publish();
  return absl::OkStatus();
}

absl::Status JobAttempt::PollCheckpoint() {
  if (writing_ == nullptr) return absl::OkStatus();
  writing_->Poll();
  if (!writing_->done()) return absl::OkStatus();
  const absl::Status failed = writing_->path().status();
  if (failed.ok()) {
    OnCheckpointWritten();
    return absl::OkStatus();
  }
  // After a rollback to an earlier checkpoint than that of its base, steps are
  // made again whose checkpoints are there: the job goes on from the newest.
  if (absl::IsAlreadyExists(failed)) return Leave(Exit::kChanged, failed);
  return writing_->failed_member().has_value() ? OnMemberStorageFailed(failed)
                                               : OnStorageFailed(failed);
}

std::shared_ptr<const MemberReplies> JobAttempt::Release(bool in_order) {
  MemberCommands commands;
  const auto release = [&](const MemberKey& member, bool after_others) {
    v1::Command& command = AddCommand(commands, member);
    if (after_others) {
      command.mutable_unload_session()->set_session(context_->session());
    } else {
      command.mutable_abort_session()->set_session(context_->session());
    }
  };
  for (const MemberKey& worker : plan_.workers) release(worker, in_order);
  if (routers_ != nullptr) {
    const std::vector<MemberKey>& ready = routers_->ready();
    for (const MemberKey& router : routers_->all()) {
      release(router,
              in_order && std::count(ready.begin(), ready.end(), router));
    }
  }
  auto released = context_->Send(std::move(commands));
  DropCheckpoint();
  dense_ = nullptr;
  context_->status->Clear();
  context_->stops_at_once = true;
  return released;
}

}  // namespace gshard
