#include "services/coordinator/serving/served_models.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "services/base/log.h"
#include "services/base/name.h"
#include "services/base/random.h"
#include "services/base/status_macros.h"
#include "services/coordinator/serving/expert_assignment.h"
#include "services/coordinator/serving/session_events.h"

namespace gshard {
namespace {

absl::Status CheckName(absl::string_view field, const std::string& name) {
  if (IsName(name)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field,
                   ": expected 1 to 128 letters, digits, '.', '_' or "
                   "'-', got '",
                   absl::CHexEscape(name), "'"));
}

}  // namespace

absl::Status ServedModels::Check(const ModelRequest& request) {
  RETURN_IF_ERROR(CheckName("name", request.name));
  if (!request.version.empty()) {
    RETURN_IF_ERROR(CheckName("version", request.version));
  }
  if (request.checkpoint.empty()) {
    return absl::InvalidArgumentError(
        "checkpoint_directory: expected a path, got nothing");
  }
  if (request.replicas < 0 || request.replicas > kMaxReplicas) {
    return absl::InvalidArgumentError(
        absl::StrCat("replicas: expected 1 to ", kMaxReplicas,
                     ", or 0 for the default, got ", request.replicas));
  }
  return absl::OkStatus();
}

ServedModels::ServedModels(
    Members* members, TaskQueue* queue,
    std::function<int64_t()> next_placement_version,
    std::function<absl::Status(const ModelRequest&,
                               const std::optional<ModelRequest>&)>
        keep_model,
    std::function<void(const std::string&, const v1::Placement&)>
        keep_placement,
    Options options)
    : cluster_(members),
      queue_(queue),
      next_placement_version_(std::move(next_placement_version)),
      keep_model_(std::move(keep_model)),
      keep_placement_(std::move(keep_placement)),
      options_(options),
      gauges_(options.gauges),
      loads_(options.load_half_life) {}

void ServedModels::Load(ModelRequest request, ServableCheckpoint checkpoint,
                        OnLoaded done) {
  ComputeType& own = checkpoint.model.compute_type;
  if (request.weights == own) request.weights.reset();
  own = request.weights.value_or(own);
  const absl::StatusOr<std::string> session = SessionOf(request, checkpoint);
  if (!session.ok()) return done(session.status());
  ServedModel* model = FindModel(*session);
  if (model == nullptr) {
    auto made = MakeModel(request, checkpoint, *session);
    if (!made.ok()) return done(made.status());
    if (made->may_serve()) {
      const absl::Status kept =
          keep_model_(made->request, PredecessorOf(*made));
      if (!kept.ok()) return done(kept);
    }
    model = &(desired_.models[*session] = *std::move(made));
    kept_.erase(*session);
  } else {
    ModelRequest changed = model->request;
    if (request.replicas != 0) changed.replicas = request.replicas;
    if (model->may_serve()) {
      const absl::Status kept = keep_model_(changed, PredecessorOf(*model));
      if (!kept.ok()) return done(kept);
    }
    model->request = std::move(changed);
    if (request.replicas != 0) {
      model->replicas = static_cast<int32_t>(request.replicas);
      model->homes.clear();
    }
    model->number = ++last_number_;
    CancelOthers(*model);
  }
  if (model->phase == ServedModel::Phase::kAnswering) {
    done(*session);
  } else if (!stopped_.ok()) {
    done(stopped_);
  } else {
    waiting_[*session].push_back(std::move(done));
  }
  Reconcile();
}

absl::StatusOr<ServedModel> ServedModels::MakeModel(
    const ModelRequest& request, const ServableCheckpoint& checkpoint,
    const std::string& session) {
  ServedModel model;
  model.session = session;
  model.request = request;
  // Fixed from now on, whatever changes in the folder.
  model.request.version = session.substr(request.name.size() + 1);
  model.request.checkpoint = checkpoint.directory;
  if (const ModelRequest* const before = Newest(request.name, session);
      before != nullptr && request.replicas == 0) {
    model.request.replicas = before->replicas;
  }
  model.folder = checkpoint.canonical;
  model.number = ++last_number_;
  ASSIGN_OR_RETURN(
      model.plan, PlanServing(session, checkpoint.model, checkpoint.directory));
  model.content = FoldIn(model.plan.router_load.router().segments_key(),
                         checkpoint.directory);
  model.experts = static_cast<int32_t>(checkpoint.model.experts);
  model.replicas = model.request.replicas == 0
                       ? options_.replicas
                       : static_cast<int32_t>(model.request.replicas);
  // Another version that routers have, from this coordinator or the previous
  // one.
  const auto is_other = [&](const auto& other) {
    return other.first != session && ModelNameOf(other.first) == request.name;
  };
  model.standby =
      std::any_of(desired_.models.begin(), desired_.models.end(), is_other) ||
      std::any_of(kept_.begin(), kept_.end(), is_other);
  if (const auto kept = kept_.find(session); kept != kept_.end()) {
    Adopt(kept->second, &model);
  }
  if (cluster_->Routers().empty()) {
    return absl::FailedPreconditionError(
        "no router has joined, or all are leaving; see `gshard describe`");
  }
  if (model.experts > 0 && cluster_->Workers().empty()) {
    return absl::FailedPreconditionError(
        "no expert worker has joined, or all are leaving; see `gshard "
        "describe`");
  }
  Observe();
  RETURN_IF_ERROR(AssignExperts(model, members_).status());
  return model;
}

absl::StatusOr<std::string> ServedModels::SessionOf(
    const ModelRequest& request, const ServableCheckpoint& checkpoint) const {
  const auto is_free = [&](const std::string& session) {
    const auto served = desired_.models.find(session);
    return served == desired_.models.end() ||
           (served->second.request.weights == request.weights &&
            served->second.folder == checkpoint.canonical);
  };
  const std::string& version = request.version;
  const std::string own_version =
      absl::StrCat(checkpoint.step,
                   request.weights.has_value()
                       ? absl::StrCat("-", ComputeTypeName(*request.weights))
                       : "");
  std::string session =
      absl::StrCat(request.name, "@", version.empty() ? own_version : version);
  if (!version.empty() && !is_free(session)) {
    return absl::AlreadyExistsError(absl::StrCat(
        "version: ", session, " is served from ", Find(session)->checkpoint,
        "; expected another version for other weights, or for ",
        checkpoint.directory));
  }
  // Another training may end at the same step.
  for (int i = 2; !is_free(session); ++i) {
    session = absl::StrCat(request.name, "@", own_version, "-", i);
  }
  return session;
}

const ModelRequest* ServedModels::Find(const std::string& session) const {
  const auto found = desired_.models.find(session);
  return found == desired_.models.end() ? nullptr : &found->second.request;
}

ServedModel* ServedModels::FindModel(const std::string& session) {
  const auto found = desired_.models.find(session);
  return found == desired_.models.end() ? nullptr : &found->second;
}

const ModelRequest* ServedModels::Beside(const std::string& session) const {
  const auto found = desired_.models.find(session);
  if (found == desired_.models.end() ||
      found->second.phase == ServedModel::Phase::kLoading) {
    return nullptr;
  }
  return Newest(ModelNameOf(session), session);
}

const ModelRequest* ServedModels::Newest(const std::string& name,
                                         const std::string& except) const {
  const ServedModel* newest = nullptr;
  for (const auto& [session, model] : desired_.models) {
    if (session != except && model.request.name == name && model.may_serve() &&
        (newest == nullptr || newest->number < model.number)) {
      newest = &model;
    }
  }
  return newest == nullptr ? nullptr : &newest->request;
}

std::optional<ModelRequest> ServedModels::PredecessorOf(
    const ServedModel& model) const {
  const ServedModel* predecessor = nullptr;
  for (const auto& [session, earlier] : desired_.models) {
    if (earlier.request.name == model.request.name &&
        earlier.number < model.number &&
        // A version that never answered is none to return to.
        (earlier.adopted || earlier.phase == ServedModel::Phase::kAnswering) &&
        (predecessor == nullptr || predecessor->number < earlier.number)) {
      predecessor = &earlier;
    }
  }
  if (predecessor != nullptr) return predecessor->request;
  const auto before = previous_.find(model.request.name);
  if (before == previous_.end()) return std::nullopt;
  return before->second;
}

absl::StatusOr<ModelRequest> ServedModels::Previous(
    const std::string& name) const {
  for (const auto& [session, model] : desired_.models) {
    if (model.request.name != name) continue;
    const auto previous = previous_.find(name);
    if (previous != previous_.end()) return previous->second;
    return absl::FailedPreconditionError(absl::StrCat(
        "name: no version of '", name, "' before ", session, " is known"));
  }
  return absl::NotFoundError(
      absl::StrCat("name: no model '", absl::CHexEscape(name), "' is loaded"));
}

void ServedModels::Unload(const std::string& session) {
  if (Find(session) == nullptr) return;
  Remove(session, absl::CancelledError("the model was unloaded"));
  Reconcile();
}

void ServedModels::Forget(const std::string& name, const std::string& version) {
  std::erase_if(kept_, [&](const auto& kept) {
    const bool is_meant = version.empty()
                              ? ModelNameOf(kept.first) == name
                              : kept.first == absl::StrCat(name, "@", version);
    if (is_meant) keep_placement_(kept.first, {});
    return is_meant;
  });
}

bool ServedModels::GiveUp(const std::string& name,
                          const std::string& directory) {
  bool in_time = true;
  std::vector<std::string> loading;
  for (const auto& [session, model] : desired_.models) {
    if (model.request.name != name || model.request.checkpoint != directory) {
      continue;
    }
    if (model.may_serve()) {
      in_time = false;
    } else {
      loading.push_back(session);
    }
  }
  for (const std::string& session : loading) Unload(session);
  return in_time;
}

void ServedModels::Remove(const std::string& session, const absl::Status& why) {
  LogInfo("model is not served any more",
          {{"session", session}, {"status", why}});
  desired_.models.erase(session);
  keep_placement_(session, {});
  TellWaiting(session, why);
}

void ServedModels::CancelOthers(const ServedModel& model) {
  const bool answers = model.phase == ServedModel::Phase::kAnswering;
  std::vector<std::string> others;
  for (const auto& [session, other] : desired_.models) {
    if (session != model.session && other.request.name == model.request.name &&
        (answers || !other.may_serve())) {
      others.push_back(session);
    }
  }
  for (const std::string& other : others) {
    Remove(other, absl::CancelledError("another version is loaded"));
  }
}

void ServedModels::TellWaiting(const std::string& session,
                               const absl::StatusOr<std::string>& outcome) {
  for (const OnLoaded& done : waiting_[session]) {
    queue_->Post([done, outcome] { done(outcome); });
  }
  waiting_.erase(session);
}

void ServedModels::OnMembersChanged() { ReconcileSoon(); }

void ServedModels::ReconcileSoon() {
  if (std::exchange(reconciles_soon_, true)) return;
  queue_->Post([this] {
    reconciles_soon_ = false;
    Reconcile();
  });
}

void ServedModels::StopWaiting(const absl::Status& why) {
  stopped_ = why;
  while (!waiting_.empty()) {
    const std::string session = waiting_.begin()->first;
    TellWaiting(session, why);
  }
}

void ServedModels::Reconcile() {
  using Phase = ServedModel::Phase;
  Observe();
  std::map<std::string, absl::Status> over;
  for (auto& [session, model] : desired_.models) {
    const int64_t version = model.placement.version();
    const Phase phase = model.phase;
    Advance(members_, next_placement_version_(), &model);
    PromiseRoom(model, &members_);
    if (phase == Phase::kLoading && model.phase != phase && !model.adopted) {
      // Routers are told of the switch below.
      model.failure = keep_model_(model.request, PredecessorOf(model));
      if (!model.failure.ok()) {
        over[session] = model.failure;
        continue;
      }
    }
    // Only routers that may be serving it are found again: a load that ends
    // with this coordinator begins anew with the next.
    if (model.may_serve() &&
        (model.placement.version() != version || model.phase != phase)) {
      keep_placement_(session, model.placement);
    }
    // Unless another version has just replaced it.
    if (!model.failure.ok()) over.emplace(session, model.failure);
    if (model.phase == phase || model.phase != Phase::kAnswering) {
      continue;
    }
    LogInfo("model is served",
            {{"session", session},
             {"checkpoint", model.request.checkpoint},
             {"replicas", model.replicas},
             {"parts", static_cast<int64_t>(model.placement.workers_size())}});
    TellWaiting(session, session);
    // What an earlier coordinator placed of other versions is being released.
    Forget(model.request.name, /*version=*/"");
    if (const auto predecessor = PredecessorOf(model)) {
      previous_[model.request.name] = *predecessor;
    }
    for (const auto& [other, earlier] : desired_.models) {
      if (earlier.request.name == model.request.name &&
          earlier.number < model.number) {
        over[other] = absl::CancelledError("another version is served");
      }
    }
  }
  for (const auto& [session, why] : over) Remove(session, why);
  {
    MutexLock lock(mutex_);
    desired_.awaited = awaited_;
  }
  for (const SessionCommand& command : Diff(members_, desired_)) Send(command);
  cluster_->SetServed(ServedBytes(members_, desired_));
  std::vector<v1::SessionInfo> infos;
  for (const auto& [session, model] : desired_.models) {
    infos.push_back(DescribeModel(model, members_));
  }
  gauges_.Set(infos);
  {
    MutexLock lock(mutex_);
    published_ = std::move(infos);
  }
  LetGo();
}

void ServedModels::LetGo() {
  std::map<std::string, WorkerDeparture> departures;
  std::map<std::string, bool> may_leave;
  for (auto& [worker, departure] : PlanDepartures(members_, desired_)) {
    may_leave[worker.name] = departure.can_be_lost;
    if (departure.may_leave) cluster_->LetGo(worker, departure.why);
    departures[worker.name] = std::move(departure);
  }
  gauges_.SetMayLeave(may_leave);
  MutexLock lock(mutex_);
  for (const auto& [worker, departure] : departures) {
    if (departure.why.empty() || departure.why == departures_[worker].why) {
      continue;
    }
    LogInfo(departure.may_leave ? "a worker is let go"
                                : "a worker that wants to leave waits",
            {{"worker", worker},
             {departure.may_leave ? "reason" : "for", departure.why}});
  }
  departures_ = std::move(departures);
}

void ServedModels::Observe() {
  ObservedMembers before = std::exchange(members_, {});
  for (const Member& member : cluster_->List()) {
    members_[KeyOf(member)] = {
        .member = member,
        .sessions = std::move(before[KeyOf(member)].sessions)};
  }
  for (auto& [session, model] : desired_.models) FindKept(&model, &members_);
  std::map<std::string, std::set<std::string>> reported = SessionsReported();
  for (auto& [key, member] : members_) {
    member.reported = std::move(reported[key.name]);
  }
  EndSettling();
}

void ServedModels::EndSettling() {
  const bool any_worker = std::any_of(
      members_.begin(), members_.end(),
      [](const auto& member) { return member.second.takes_experts(); });
  const bool any_settles =
      std::any_of(desired_.models.begin(), desired_.models.end(),
                  [](const auto& model) { return model.second.settling; });
  if (!any_worker || !any_settles || std::exchange(settles_, true)) return;
  queue_->PostAfter(options_.lease, [this] {
    settles_ = false;
    for (auto& [session, model] : desired_.models) model.settling = false;
    ReconcileSoon();
  });
}

std::map<std::string, std::set<std::string>> ServedModels::SessionsReported()
    const {
  std::map<std::string, std::set<std::string>> sessions;
  for (const v1::Member& member : cluster_->Describe()) {
    for (const v1::SessionLoad& load : member.heartbeat().session_loads()) {
      sessions[member.name()].insert(load.session());
    }
  }
  return sessions;
}

HeldSession* ServedModels::FindHeld(const MemberKey& member,
                                    const std::string& session,
                                    int64_t command) {
  const auto found = members_.find(member);
  if (found == members_.end()) return nullptr;
  HeldSession& held = found->second.sessions[session];
  return held.command == command ? &held : nullptr;
}

void ServedModels::Send(const SessionCommand& command) {
  HeldSession& held = members_.at(command.member).sessions[command.session];
  OnSent(command.command, FindModel(ModelOf(command.session)), &held);
  held.command = ++last_command_;
  cluster_->Send(
      command.member, command.command,
      [this, queue = queue_, member = command.member, session = command.session,
       number = held.command](const absl::StatusOr<v1::CommandReply>& reply) {
        queue->Post([this, member, session, number, status = reply.status()] {
          OnReply(member, session, number, status);
        });
      });
}

void ServedModels::OnReply(const MemberKey& member, const std::string& session,
                           int64_t command, const absl::Status& status) {
  HeldSession* const held = FindHeld(member, session, command);
  if (held == nullptr) return;
  if (!status.ok() && !absl::IsAlreadyExists(status)) {
    LogError("a member cannot do what a served model needs",
             {{"session", session}, {"status", status}});
  }
  const absl::Duration pause =
      OnReplied(status, members_.at(member).member.info.role,
                options_.retry_pause, FindModel(ModelOf(session)), held);
  if (pause < absl::InfiniteDuration()) {
    queue_->PostAfter(pause, [this, member, session, command] {
      HeldSession* const held = FindHeld(member, session, command);
      if (held == nullptr) return;
      held->state = HeldSession::State::kUnknown;
      ReconcileSoon();
    });
  }
  ReconcileSoon();
}

void ServedModels::Watch() {
  if (std::exchange(watching_, true)) return;
  queue_->PostAfter(options_.watch_interval, [this] { Look(); });
}

void ServedModels::Look() {
  Observe();
  loads_.Observe(cluster_->Describe(), MonotonicTime::Now());
  for (auto& [session, model] : desired_.models) {
    model.load = loads_.Of(session);
    if (std::ssize(model.load) != model.experts) model.load.clear();
  }
  OnHeartbeats(SessionsReported(), &members_);
  Reconcile();
  queue_->PostAfter(options_.watch_interval, [this] { Look(); });
}

void ServedModels::SetAwaited(std::set<std::string> names) {
  {
    MutexLock lock(mutex_);
    awaited_ = std::move(names);
  }
  queue_->Post([this] { ReconcileSoon(); });
}

std::set<std::string> ServedModels::Names() const {
  MutexLock lock(mutex_);
  std::set<std::string> names = awaited_;
  for (const v1::SessionInfo& info : published_) {
    names.insert(ModelNameOf(info.session()));
  }
  return names;
}

std::set<std::string> ServedModels::Awaited() const {
  MutexLock lock(mutex_);
  std::set<std::string> names = awaited_;
  for (const v1::SessionInfo& info : published_) {
    names.erase(ModelNameOf(info.session()));
  }
  return names;
}

std::vector<v1::SessionInfo> ServedModels::Describe() const {
  MutexLock lock(mutex_);
  return published_;
}

std::map<std::string, WorkerDeparture> ServedModels::Departures() const {
  MutexLock lock(mutex_);
  return departures_;
}

}  // namespace gshard
