// The models of a Coordinator, requested by its command line, its stored state,
// callers, jobs or a file, and their storage.

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "services/base/log.h"
#include "services/base/status_macros.h"
#include "services/config/model_config_proto.h"
#include "services/coordinator/coordinator.h"
#include "services/rpc/wire/status.h"

namespace gshard {
namespace {

bool IsMeant(const StoredModel& model, const std::string& name,
             const std::string& version) {
  return model.request.name == name &&
         (version.empty() || model.request.version.empty() ||
          model.request.version == version);
}

// A load whose checkpoint is open is among the served models.
template <typename Loading>
bool IsMeant(const Loading& load, const std::string& name,
             const std::string& version) {
  return load.opening && IsMeant(load.model, name, version);
}

}  // namespace

void Coordinator::LoadModel(const v1::LoadModelRequest& request,
                            const Requester& who,
                            Done<v1::LoadModelResponse> done) {
  const std::string& named = request.checkpoint_directory();
  done = Audited<v1::LoadModelResponse>({"load", who, request.name(), named},
                                        std::move(done));
  absl::Status status = CheckModel(who.caller, Role::kAdmin, request.name());
  if (request.rollback() &&
      !(request.version().empty() && named.empty() && request.replicas() == 0 &&
        request.weights() == 0)) {
    status = absl::InvalidArgumentError(
        "rollback: expected nothing but a name beside it");
  }
  if (!status.ok()) return done(status);
  if (named.empty()) return LoadFrom("", request, std::move(done));
  checkpoints_queue_.Post([this, request, done = std::move(done)] {
    std::string directory = request.checkpoint_directory();
    const absl::Status may = path_rights_.Admit(&directory);
    if (!may.ok()) return done(Annotate(may, "checkpoint_directory"));
    LoadFrom(directory, request, done);
  });
}

void Coordinator::LoadFrom(const std::string& directory,
                           const v1::LoadModelRequest& request,
                           Done<v1::LoadModelResponse> done) {
  const auto weights = ComputeTypeFromProto(request.weights());
  if (!weights.ok()) return done(Annotate(weights.status(), "weights"));
  serving_queue_.Post(
      [this, request, directory, weights = *weights, done = std::move(done)] {
        ModelRequest model{.name = request.name(),
                           .checkpoint = directory,
                           .version = request.version(),
                           .replicas = request.replicas(),
                           .weights = weights};
        const absl::Status free = CheckNotInFile(request.name());
        if (!free.ok()) return done(free);
        if (request.rollback()) {
          const auto previous = served_.Previous(request.name());
          if (!previous.ok()) return done(previous.status());
          model = *previous;
        }
        Serve(model, [done](const absl::StatusOr<std::string>& session) {
          if (!session.ok()) return done(session.status());
          v1::LoadModelResponse response;
          response.set_session(*session);
          done(std::move(response));
        });
      });
}

void Coordinator::UnloadModel(const v1::UnloadModelRequest& request,
                              const Requester& who,
                              Done<v1::UnloadModelResponse> done) {
  done = Audited<v1::UnloadModelResponse>({"unload", who, request.session()},
                                          std::move(done));
  const absl::Status may =
      CheckModel(who.caller, Role::kAdmin, request.session());
  if (!may.ok()) return done(may);
  serving_queue_.Post([this, request, done = std::move(done)] {
    const std::string name = ModelNameOf(request.session());
    const std::string version = name.size() < request.session().size()
                                    ? request.session().substr(name.size() + 1)
                                    : "";
    const absl::Status free = CheckNotInFile(name);
    if (!free.ok()) return done(free);
    const bool loaded = served_.Find(request.session()) != nullptr;
    if (!loaded && !IsWaiting(name, version)) {
      return done(absl::NotFoundError(
          absl::StrCat("session: no model '",
                       absl::CHexEscape(request.session()), "' is loaded")));
    }
    // First, so that a call that fails can be repeated. Another version of the
    // name may be served, and must be kept.
    const ModelRequest* const rest = served_.Beside(request.session());
    const absl::Status stored = rest == nullptr
                                    ? store_->RemoveModel(name, version)
                                    : store_->PutModel(ToStored(*rest));
    if (!stored.ok()) return done(stored);
    // A model that could not be served yet is not kept either.
    ForgetWaiting(name, version);
    if (loaded) served_.Unload(request.session());
    done(v1::UnloadModelResponse());
  });
}

bool Coordinator::IsWaiting(const std::string& name,
                            const std::string& version) const {
  const auto is_meant = [&](const auto& waiting) {
    return IsMeant(waiting.second, name, version);
  };
  return std::any_of(loading_.begin(), loading_.end(), is_meant) ||
         std::any_of(restored_models_.begin(), restored_models_.end(),
                     is_meant) ||
         std::any_of(initial_models_.begin(), initial_models_.end(), is_meant);
}

void Coordinator::ForgetWaiting(const std::string& name,
                                const std::string& version) {
  const auto is_meant = [&](const auto& waiting) {
    return IsMeant(waiting.second, name, version);
  };
  std::erase_if(loading_, is_meant);
  std::erase_if(restored_models_, is_meant);
  std::erase_if(initial_models_, is_meant);
  served_.Forget(name, version);
  TellAwaited();
}

void Coordinator::Load(const StoredModel& model, bool asked,
                       ServedModels::OnLoaded done) {
  const ModelRequest& request = model.request;
  const absl::Status sound = ServedModels::Check(request);
  if (!sound.ok()) return done(sound);
  const int64_t load = ++last_load_;
  loading_[load] = {.model = model, .asked = asked};
  TellAwaited();
  checkpoints_queue_.Post([this, load, request, done = std::move(done)] {
    auto checkpoint = options_.open_to_serve(request.checkpoint);
    serving_queue_.Post(
        [this, load, request, done, checkpoint = std::move(checkpoint)] {
          const auto found = loading_.find(load);
          if (found == loading_.end()) {
            return done(absl::CancelledError("the model was unloaded"));
          }
          found->second.opening = false;
          const auto end = [this, load,
                            done](const absl::StatusOr<std::string>& session) {
            loading_.erase(load);
            done(session);
            TellAwaited();
          };
          if (!checkpoint.ok()) return end(checkpoint.status());
          served_.Load(request, *checkpoint, end);
        });
  });
}

void Coordinator::Serve(const ModelRequest& request,
                        ServedModels::OnLoaded done) {
  Load(ToStored(request), /*asked=*/true,
       [this, request, done](const absl::StatusOr<std::string>& session) {
         if (!session.ok()) {
           RetryInitialModels();
           return done(session);
         }
         // Unless the models file names another one by now.
         if (!file_models_.contains(request.name)) {
           restored_models_.erase(request.name);
           initial_models_.erase(request.name);
         }
         done(session);
       });
}

bool Coordinator::IsLoading(const std::string& name) const {
  return std::any_of(loading_.begin(), loading_.end(), [&](const auto& load) {
    return load.second.model.request.name == name;
  });
}

bool Coordinator::IsAsked(const std::string& name) const {
  return std::any_of(loading_.begin(), loading_.end(), [&](const auto& load) {
    return load.second.asked && load.second.model.request.name == name;
  });
}

absl::Status Coordinator::Keep(const ModelRequest& request,
                               const std::optional<ModelRequest>& previous) {
  const bool asked = IsAsked(request.name);
  // A restored one is in the store.
  if (!asked && !file_models_.contains(request.name)) return absl::OkStatus();
  std::optional<StoredModel> before;
  if (previous.has_value()) before = ToStored(*previous);
  const absl::Status kept = store_->PutModel(ToStored(request), before);
  if (kept.ok() || asked) return kept;
  LogError("a restart of the coordinator will not know of a model",
           {{"model", request.name}, {"status", kept}});
  return absl::OkStatus();
}

StoredModel Coordinator::ToStored(const ModelRequest& request) const {
  return {.request = request, .from_file = file_models_.contains(request.name)};
}

bool Coordinator::AwaitsWorkers() const {
  std::set<std::string> missing = awaited_workers_;
  for (const Member& worker : members_->List(MemberRole::kExpertWorker)) {
    missing.erase(worker.info.id);
  }
  return !missing.empty();
}

void Coordinator::ServeInitialModels() {
  if (AwaitsWorkers()) return;
  const int64_t routers = std::ssize(members_->Routers());
  const int64_t workers = std::ssize(members_->Workers());
  // What has served is maintained by whoever is there.
  if (routers >= 1 && workers >= std::min<int64_t>(1, options_.min_workers)) {
    LoadWaiting(&restored_models_);
  }
  if (routers >= options_.min_routers && workers >= options_.min_workers) {
    LoadWaiting(&initial_models_);
  }
  served_.Watch();
}

void Coordinator::LoadWaiting(std::map<std::string, StoredModel>* waiting) {
  const std::map<std::string, StoredModel> models = *waiting;
  for (const auto& [name, stored] : models) {
    // What is being loaded already replaces it, unless that fails.
    const bool is_replaced =
        waiting == &restored_models_
            ? IsLoading(name)
            : IsAsked(name) && !file_models_.contains(name);
    if (is_replaced) continue;
    // Each when it is loaded: routers that join are told all names.
    waiting->erase(name);
    Load(stored, /*asked=*/false,
         [this, waiting,
          model = stored](const absl::StatusOr<std::string>& session) {
           if (session.ok()) {
             if (waiting == &initial_models_) {
               restored_models_.erase(model.request.name);
             }
             return OnInitialServed(model, waiting == &restored_models_);
           }
           // Cancelled: it was unloaded, or replaced by another version.
           if (absl::IsCancelled(session.status())) return;
           LogError("a model is not served",
                    {{"model", model.request.name},
                     {"checkpoint", model.request.checkpoint},
                     {"status", session.status()}});
           if (waiting == &initial_models_ && IsSuperseded(model)) return;
           // Other members may be able to load it, or these ones later.
           waiting->emplace(model.request.name, model);
           RetryInitialModels();
         });
  }
}

bool Coordinator::IsSuperseded(const StoredModel& model) const {
  const auto found = file_models_.find(model.request.name);
  if (found == file_models_.end()) return model.from_file;
  return found->second != model.request;
}

void Coordinator::OnInitialServed(const StoredModel& model, bool restored) {
  if (!file_models_.contains(model.request.name))
    return;  // from the store, or a flag
  // Unless the file has changed meanwhile. What is restored has a version, even
  // if the file names none.
  const bool superseded = restored
                              ? initial_models_.contains(model.request.name) ||
                                    IsLoading(model.request.name)
                              : IsSuperseded(model);
  if (!superseded) unserved_file_models_.erase(model.request.name);
  CountFileModels();
}

void Coordinator::WatchModelsFile() {
  if (options_.models_file.empty()) return;
  models_file_ = std::make_unique<ModelsFile>(
      options_.models_file,
      [this](std::string* path) { return path_rights_.Admit(path); });
  checkpoints_queue_.Post([this] { LookAtModelsFile(); });
}

void Coordinator::LookAtModelsFile() {
  auto models = models_file_->Look();
  options_.models_file_rejected.Set(models.ok() ? 0 : 1);
  if (models.status() != models_file_status_) {
    models_file_status_ = models.status();
    if (!models.ok()) {
      LogError("the models file is not followed; what it said before is served",
               {{"status", models.status()}});
    }
  }
  if (models.ok() && models->has_value()) {
    serving_queue_.Post(
        [this, wanted = **std::move(models)] { FollowModelsFile(wanted); });
  }
  checkpoints_queue_.PostAfter(options_.models_file_interval,
                               [this] { LookAtModelsFile(); });
}

void Coordinator::FollowModelsFile(std::vector<ModelRequest> wanted) {
  for (ModelRequest& model : wanted) {
    if (model.replicas == 0) model.replicas = options_.replicas;
    // The store has the version that none stood for.
    const auto restored = file_models_.find(model.name);
    if (follows_file_ || restored == file_models_.end()) continue;
    ModelRequest same = restored->second;
    if (model.version.empty()) same.version.clear();
    if (same == model) restored->second = model;
  }
  follows_file_ = true;
  const ModelsChange change = PlanModels(file_models_, wanted);
  LogInfo("follows the models file",
          {{"models", static_cast<int64_t>(wanted.size())},
           {"to_serve", static_cast<int64_t>(change.serve.size())},
           {"to_unload", static_cast<int64_t>(change.unload.size())}});
  for (const std::string& name : change.unload) {
    ForgetWaiting(name, /*version=*/"");
    for (const v1::SessionInfo& info : served_.Describe()) {
      if (ModelNameOf(info.session()) == name) served_.Unload(info.session());
    }
    const absl::Status removed = store_->RemoveModel(name, /*version=*/"");
    if (!removed.ok()) {
      LogError("a restart of the coordinator will serve a model again",
               {{"model", name}, {"status", removed}});
    }
    file_models_.erase(name);
    unserved_file_models_.erase(name);
  }
  for (const ModelRequest& model : change.serve) {
    file_models_[model.name] = model;
    unserved_file_models_.insert(model.name);
    initial_models_[model.name] = {.request = model, .from_file = true};
  }
  CountFileModels();
  TellAwaited();
  ServeInitialModels();
}

absl::Status Coordinator::CheckNotInFile(const std::string& name) const {
  if (!file_models_.contains(name)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("name: '", name, "' is served as ", options_.models_file,
                   " says, the coordinator's --models_file: change it there"));
}

void Coordinator::CountFileModels() const {
  const size_t waiting = unserved_file_models_.size();
  options_.models_file_models.With({"waiting"})
      .Set(static_cast<double>(waiting));
  options_.models_file_models.With({"served"})
      .Set(static_cast<double>(file_models_.size() - waiting));
}

void Coordinator::RetryInitialModels() {
  if (std::exchange(retrying_, true)) return;
  serving_queue_.PostAfter(options_.serving_retry, [this] {
    retrying_ = false;
    ServeInitialModels();
  });
}

void Coordinator::TellAwaited() {
  std::set<std::string> names;
  std::vector<std::string> checkpoints;
  const auto add = [&](const StoredModel& model) {
    names.insert(model.request.name);
    checkpoints.push_back(model.request.checkpoint);
  };
  for (const auto& [name, model] : restored_models_) add(model);
  for (const auto& [name, model] : initial_models_) add(model);
  for (const auto& [load, loading] : loading_) add(loading.model);
  // All of them, as a load may fail at any time and then be tried again.
  for (const auto& [name, model] : file_models_) {
    checkpoints.push_back(model.checkpoint);
  }
  served_.SetAwaited(std::move(names));
  MutexLock lock(mutex_);
  awaited_checkpoints_ = std::move(checkpoints);
}

void Coordinator::ServeTrained(const std::string& name,
                               const std::string& directory,
                               const Requester& submitter,
                               ServedModels::OnLoaded done) {
  done = Audited<std::string>({"serve_as", submitter, name, directory},
                              std::move(done));
  absl::Status may = CheckModel(submitter.caller, Role::kAdmin, name);
  if (may.ok()) may = CheckNotInFile(name);
  if (!may.ok()) return done(may);
  Serve({.name = name, .checkpoint = directory}, std::move(done));
}

bool Coordinator::GiveUpServing(const std::string& name,
                                const std::string& directory) {
  std::erase_if(loading_, [&](const auto& one) {
    const auto& load = one.second;
    return load.opening && load.asked && load.model.request.name == name &&
           load.model.request.checkpoint == directory;
  });
  TellAwaited();
  return served_.GiveUp(name, directory);
}

}  // namespace gshard
