#include "services/coordinator/served_model.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "absl/strings/str_cat.h"
#include "services/base/log.h"
#include "services/base/random.h"
#include "services/base/status_macros.h"
#include "services/cluster/placement_parts.h"
#include "services/coordinator/fan_out.h"

namespace gshard {
namespace {

// What a worker reads from a checkpoint in a second, for judging moves.
constexpr double kLoadBytesPerSecond = 200e6;

// Sets of workers of which the placement is remembered, and how much worse it
// may be than what would be moved to: less than moving is worth.
constexpr size_t kMaxHomes = 16;
constexpr double kHomeCost = 1.1;

// The same content, the same name: whoever has the session already, has what is
// asked for.
std::string PartSession(const std::string& session,
                        const std::string& directory,
                        const std::vector<int32_t>& experts) {
  uint64_t hash = FoldIn(0, directory);
  for (const int32_t expert : experts) hash = FoldIn(hash, expert);
  return absl::StrCat(session, "#", absl::Hex(hash, absl::kZeroPad16));
}

std::vector<std::string> NamesOf(const std::vector<Member>& workers) {
  std::vector<std::string> names;
  for (const Member& worker : workers) names.push_back(worker.info.id);
  return names;
}

}  // namespace

absl::StatusOr<std::shared_ptr<ServedModel>> ServedModel::Create(
    const ServingEnvironment& environment, const std::string& session,
    ServableCheckpoint checkpoint, int32_t replicas, OnLoaded on_loaded) {
  ASSIGN_OR_RETURN(ServingPlan plan, PlanServing(session, checkpoint.model,
                                                 checkpoint.directory));
  return std::shared_ptr<ServedModel>(
      new ServedModel(environment, session, std::move(checkpoint), replicas,
                      std::move(plan), std::move(on_loaded)));
}

ServedModel::ServedModel(const ServingEnvironment& environment,
                         std::string session, ServableCheckpoint checkpoint,
                         int32_t replicas, ServingPlan plan, OnLoaded on_loaded)
    : environment_(environment),
      session_(std::move(session)),
      checkpoint_(std::move(checkpoint)),
      replicas_(replicas),
      plan_(std::move(plan)),
      on_loaded_(std::move(on_loaded)) {}

absl::Status ServedModel::Start() {
  const std::vector<Member> workers =
      environment_.members->List(MemberRole::kExpertWorker);
  if (environment_.members->List(MemberRole::kRouter).empty()) {
    return absl::FailedPreconditionError("there is no router");
  }
  if (checkpoint_.model.experts > 0) {
    if (workers.empty()) {
      return absl::FailedPreconditionError("there is no expert worker");
    }
    RETURN_IF_ERROR(WantedLists(workers).status());
  }
  Reconcile();
  return absl::OkStatus();
}

void ServedModel::Send(
    const MemberKey& key, v1::Command command,
    std::function<void(ServedModel&, const absl::Status&)> done) {
  environment_.members->Send(
      key, std::move(command),
      [queue = environment_.queue, model = weak_from_this(),
       done = std::move(done)](const absl::StatusOr<v1::CommandReply>& reply) {
        queue->Post([model, done, status = reply.status()] {
          const std::shared_ptr<ServedModel> self = model.lock();
          if (self != nullptr && !self->released_) done(*self, status);
        });
      });
}

void ServedModel::DropLost() {
  std::set<MemberKey> there;
  for (const Member& member : environment_.members->List()) {
    there.insert(KeyOf(member));
  }
  const auto is_lost = [&](const auto& entry) {
    return there.count(entry.first) == 0;
  };
  const size_t parts = parts_.size();
  std::erase_if(parts_, is_lost);
  std::erase_if(room_, is_lost);
  std::erase_if(routers_, is_lost);
  if (parts_.size() < parts) {
    LogWarning("an expert worker of a served model was lost",
               {{"session", session_}});
  }
}

bool ServedModel::loading_parts() const {
  for (const auto& [key, parts] : parts_) {
    for (const Part& part : parts) {
      if (!part.ready) return true;
    }
  }
  return false;
}

ServedModel::Part* ServedModel::FindPart(const MemberKey& worker,
                                         int64_t part) {
  const auto found = parts_.find(worker);
  if (found == parts_.end()) return nullptr;
  for (Part& held : found->second) {
    if (held.id == part) return &held;
  }
  return nullptr;
}

absl::StatusOr<ExpertLists> ServedModel::WantedLists(
    const std::vector<Member>& workers) const {
  ReplicaProblem problem;
  problem.num_experts = static_cast<int32_t>(checkpoint_.model.experts);
  problem.replicas = replicas_;
  problem.load = load_;
  ExpertLists lists(workers.size());
  bool anything = false;
  for (size_t w = 0; w < workers.size(); ++w) {
    const MemberKey key = KeyOf(workers[w]);
    ReplicaProblem::Worker& worker = problem.workers.emplace_back();
    if (workers[w].info.capacity_bytes > 0) {
      worker.max_experts = static_cast<int32_t>(
          std::min<int64_t>(workers[w].info.capacity_bytes /
                                std::max<int64_t>(plan_.expert_bytes, 1),
                            problem.num_experts));
    }
    const auto room = room_.find(key);
    if (room != room_.end()) {
      worker.max_experts = std::min(worker.max_experts, room->second);
    }
    const auto held = parts_.find(key);
    if (held == parts_.end()) continue;
    std::set<int32_t> experts;
    for (const Part& part : held->second) {
      if (part.obsolete || part.unused_since > 0) continue;
      experts.insert(part.experts.begin(), part.experts.end());
    }
    lists[w].assign(experts.begin(), experts.end());
    anything = anything || !experts.empty();
  }
  if (anything) {
    lists = RepairReplicas(problem, std::move(lists));
    const auto even = static_cast<int32_t>(
        (problem.num_experts * replicas_ + workers.size() - 1) /
        workers.size());
    lists = ImproveReplicas(
        problem, lists,
        {.max_moves = std::max(even, 8),
         .seconds_per_move =
             static_cast<double>(plan_.expert_bytes) / kLoadBytesPerSecond});
  } else {
    ASSIGN_OR_RETURN(lists, PlaceReplicas(problem));
  }
  const auto home = homes_.find(NamesOf(workers));
  if (home == homes_.end() || PlacementCost(problem, home->second) >
                                  kHomeCost * PlacementCost(problem, lists)) {
    return lists;
  }
  for (size_t w = 0; w < workers.size(); ++w) {
    if (static_cast<int64_t>(home->second[w].size()) >
        problem.workers[w].max_experts) {
      return lists;
    }
  }
  return home->second;
}

void ServedModel::Reconcile() {
  DropLost();
  const std::vector<Member> workers =
      environment_.members->List(MemberRole::kExpertWorker);
  if (checkpoint_.model.experts > 0 && !workers.empty()) {
    const absl::StatusOr<ExpertLists> wanted = WantedLists(workers);
    if (!wanted.ok()) {
      if (!loaded_) return Fail(wanted.status());
      LogError("a served model cannot be placed",
               {{"session", session_}, {"status", wanted.status()}});
    } else {
      for (size_t w = 0; w < workers.size(); ++w) {
        std::vector<Part>& parts = parts_[KeyOf(workers[w])];
        std::vector<std::vector<int32_t>> held;
        for (const Part& part : parts) held.push_back(part.experts);
        PartChange change = PlanParts(held, (*wanted)[w]);
        for (size_t p = 0; p < parts.size(); ++p) {
          parts[p].obsolete = !change.keep[p];
          if (change.keep[p]) parts[p].unused_since = 0;
        }
        if (!change.load.empty()) {
          LoadPart(workers[w], std::move(change.load));
        }
      }
    }
  } else if (!loaded_ && checkpoint_.model.experts > 0) {
    return Fail(absl::UnavailableError("all expert workers were lost"));
  }
  PublishPlacement();
  LoadRouters();
  CheckLoaded();
  RememberHome();
  environment_.on_change();
}

void ServedModel::LoadPart(const Member& worker, std::vector<int32_t> experts) {
  const MemberKey key = KeyOf(worker);
  Part part;
  part.id = ++last_part_;
  part.session = PartSession(session_, checkpoint_.directory, experts);
  v1::Command command;
  v1::LoadSession& load = *command.mutable_load_session();
  load = plan_.worker_load;
  load.set_session(part.session);
  load.mutable_worker()->mutable_experts()->Add(experts.begin(), experts.end());
  part.experts = std::move(experts);
  parts_[key].push_back(part);
  Send(key, std::move(command),
       [key, id = part.id](ServedModel& model, const absl::Status& status) {
         model.OnPartLoaded(key, id, status);
       });
}

void ServedModel::OnPartLoaded(const MemberKey& worker, int64_t id,
                               const absl::Status& status) {
  Part* const part = FindPart(worker, id);
  if (part == nullptr) return;  // the worker was lost
  // Another coordinator had it loaded.
  if (status.ok() || absl::IsAlreadyExists(status)) {
    part->ready = true;
    return Reconcile();
  }
  if (!loaded_ && !absl::IsUnavailable(status)) return Fail(status);
  LogError("a worker cannot load experts of a served model",
           {{"session", session_}, {"status", status}});
  std::vector<Part>& parts = parts_[worker];
  std::erase_if(parts, [&](const Part& other) { return other.id == id; });
  // It keeps what it has, until members change.
  int32_t held = 0;
  for (const Part& other : parts) {
    if (!other.obsolete) held += static_cast<int32_t>(other.experts.size());
  }
  if (!absl::IsUnavailable(status)) room_[worker] = held;
  Reconcile();
}

std::vector<int32_t> ServedModel::CountReplicas() const {
  std::vector<int32_t> counts(checkpoint_.model.experts);
  for (const v1::WorkerPlacement& worker : placement_.workers()) {
    for (const int32_t expert : worker.experts()) ++counts[expert];
  }
  return counts;
}

void ServedModel::RememberHome() {
  if (!loaded_ || loading_parts()) return;
  const std::vector<Member> workers =
      environment_.members->List(MemberRole::kExpertWorker);
  ExpertLists lists;
  std::vector<size_t> counts(checkpoint_.model.experts);
  for (const Member& worker : workers) {
    std::vector<int32_t>& list = lists.emplace_back();
    for (const Part& part : parts_[KeyOf(worker)]) {
      if (part.unused_since > 0) continue;
      list.insert(list.end(), part.experts.begin(), part.experts.end());
      for (const int32_t expert : part.experts) ++counts[expert];
    }
    std::sort(list.begin(), list.end());
  }
  for (const size_t count : counts) {
    if (count < std::min<size_t>(replicas_, workers.size())) return;
  }
  if (homes_.size() >= kMaxHomes) homes_.clear();
  homes_[NamesOf(workers)] = std::move(lists);
}

void ServedModel::CheckLoaded() {
  if (loaded_ || released_ || placement_.version() == 0 || loading_parts()) {
    return;
  }
  if (environment_.members->List(MemberRole::kRouter).empty()) {
    return Fail(absl::UnavailableError("all routers were lost"));
  }
  for (const auto& [key, router] : routers_) {
    if (router.state != Router::kLoaded) return;
  }
  if (routers_.empty()) return;
  loaded_ = true;
  LogInfo("model is served",
          {{"session", session_},
           {"checkpoint", checkpoint_.directory},
           {"replicas", replicas_},
           {"routers", static_cast<int64_t>(routers_.size())},
           {"parts", static_cast<int64_t>(placement_.workers_size())}});
  const OnLoaded on_loaded = std::exchange(on_loaded_, nullptr);
  if (on_loaded) on_loaded(absl::OkStatus());
}

void ServedModel::Fail(const absl::Status& status) {
  if (loaded_ || released_) return;
  LogError("model cannot be loaded",
           {{"session", session_}, {"status", status}});
  Release(/*abort=*/true);
  const OnLoaded on_loaded = std::exchange(on_loaded_, nullptr);
  if (on_loaded) on_loaded(status);
}

void ServedModel::Release(bool abort) {
  if (released_) return;
  released_ = true;
  const auto release = [abort](const std::string& session) {
    v1::Command command;
    if (abort) {
      command.mutable_abort_session()->set_session(session);
    } else {
      command.mutable_unload_session()->set_session(session);
    }
    return command;
  };
  MemberCommands routers, workers;
  for (const auto& [key, router] : routers_) {
    routers.emplace_back(key, release(session_));
  }
  for (const auto& [key, parts] : parts_) {
    for (const Part& part : parts) {
      workers.emplace_back(key, release(part.session));
    }
  }
  Members* const members = environment_.members;
  if (abort) {
    Tell(*members, std::move(routers));
    Tell(*members, std::move(workers));
    return;
  }
  // Calls in flight need the workers until they are done.
  Settle(*members, *environment_.queue, std::move(routers),
         [members, workers = std::move(workers)] { Tell(*members, workers); });
}

v1::SessionInfo ServedModel::Describe() const {
  v1::SessionInfo info;
  info.set_session(session_);
  info.set_state(v1::SessionInfo::LOADING);
  if (loaded_) {
    info.set_state(checkpoint_.model.experts > 0 && placement_.workers().empty()
                       ? v1::SessionInfo::BROKEN
                       : v1::SessionInfo::READY);
  }
  *info.mutable_placement() = placement_;
  for (const auto& [key, router] : routers_) {
    if (router.state == Router::kLoaded) info.add_routers(key.name);
  }
  info.set_checkpoint_directory(checkpoint_.directory);
  info.set_replicas(replicas_);
  for (const int32_t count : CountReplicas()) {
    if (count == 0) {
      info.set_experts_unavailable(info.experts_unavailable() + 1);
    }
    if (count < replicas_) {
      info.set_experts_below_replicas(info.experts_below_replicas() + 1);
    }
  }
  return info;
}

}  // namespace gshard
