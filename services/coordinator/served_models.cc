#include "services/coordinator/served_models.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "services/base/log.h"
#include "services/base/status_macros.h"

namespace gshard {
namespace {

// How often loads are looked at.
constexpr absl::Duration kLoadInterval = absl::Seconds(10);

absl::Status CheckName(absl::string_view field, const std::string& name) {
  const bool sound =
      !name.empty() && name.size() <= 128 &&
      std::all_of(name.begin(), name.end(), [](char c) {
        return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-';
      });
  if (sound) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field,
                   ": expected 1 to 128 letters, digits, '.', '_' or "
                   "'-', got '",
                   absl::CHexEscape(name), "'"));
}

absl::Status CheckRequest(const ServedModels::Request& request) {
  RETURN_IF_ERROR(CheckName("name", request.name));
  if (!request.version.empty()) {
    RETURN_IF_ERROR(CheckName("version", request.version));
  }
  if (request.checkpoint_directory.empty()) {
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

}  // namespace

ServedModels::ServedModels(Members* members, TaskQueue* queue,
                           std::function<int64_t()> next_placement_version,
                           int32_t default_replicas)
    : environment_{.members = members,
                   .queue = queue,
                   .next_placement_version = std::move(next_placement_version),
                   .on_change = [this] { Publish(); }},
      default_replicas_(default_replicas) {}

void ServedModels::Load(const Request& request, OnLoaded done) {
  const absl::Status sound = CheckRequest(request);
  if (!sound.ok()) return done(sound);
  absl::StatusOr<ServableCheckpoint> checkpoint =
      OpenToServe(request.checkpoint_directory);
  if (!checkpoint.ok()) return done(checkpoint.status());
  const std::string session =
      absl::StrCat(request.name, "@",
                   request.version.empty() ? absl::StrCat(checkpoint->step)
                                           : request.version);
  const auto found = sessions_.find(session);
  if (found != sessions_.end()) {
    if (found->second.model->loaded()) return done(session);
    found->second.waiting.push_back(std::move(done));
    return;
  }
  const int64_t number = ++last_number_;
  auto model = ServedModel::Create(
      environment_, session, *std::move(checkpoint),
      request.replicas == 0 ? default_replicas_ : request.replicas,
      [this, session, number](const absl::Status& status) {
        // Not from inside of the model, which may go.
        environment_.queue->Post([this, session, number, status] {
          OnLoadedModel(session, number, status);
        });
      });
  if (!model.ok()) return done(model.status());
  const absl::Status started = (*model)->Start();
  if (!started.ok()) return done(started);
  sessions_[session] = {.model = *std::move(model),
                        .request = request,
                        .number = number,
                        .waiting = {std::move(done)}};
  Publish();
  if (std::exchange(watching_load_, true)) return;
  environment_.queue->PostAfter(kLoadInterval, [this] { WatchLoad(); });
}

void ServedModels::OnLoadedModel(const std::string& session, int64_t number,
                                 const absl::Status& status) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end() || found->second.number != number) return;
  const std::vector<OnLoaded> waiting =
      std::exchange(found->second.waiting, {});
  if (!status.ok()) {
    sessions_.erase(found);
    Publish();
    for (const OnLoaded& done : waiting) done(status);
    return;
  }
  std::vector<std::string> replaced;
  for (const auto& [other, served] : sessions_) {
    if (served.request.name == found->second.request.name &&
        served.number < number) {
      replaced.push_back(other);
      previous_[served.request.name] = served.request;
    }
  }
  for (const std::string& other : replaced) (void)Unload(other);
  Publish();
  for (const OnLoaded& done : waiting) done(session);
}

absl::StatusOr<ServedModels::Request> ServedModels::Previous(
    const std::string& name) const {
  for (const auto& [session, served] : sessions_) {
    if (served.request.name != name) continue;
    const auto previous = previous_.find(name);
    if (previous != previous_.end()) return previous->second;
    return absl::FailedPreconditionError(absl::StrCat(
        "name: no version of '", name, "' before ", session, " is known"));
  }
  return absl::NotFoundError(
      absl::StrCat("name: no model '", absl::CHexEscape(name), "' is loaded"));
}

absl::Status ServedModels::Unload(const std::string& session) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) {
    return absl::NotFoundError(absl::StrCat(
        "session: no model '", absl::CHexEscape(session), "' is loaded"));
  }
  found->second.model->Release(/*abort=*/false);
  const std::vector<OnLoaded> waiting = std::move(found->second.waiting);
  sessions_.erase(found);
  Publish();
  LogInfo("model unloaded", {{"session", session}});
  for (const OnLoaded& done : waiting) {
    done(absl::CancelledError("the model was unloaded"));
  }
  return absl::OkStatus();
}

void ServedModels::OnMembersChanged() {
  for (const auto& [session, served] : sessions_) served.model->Reconcile();
  Publish();
}

void ServedModels::WatchLoad() {
  if (sessions_.empty()) {
    watching_load_ = false;
    return;
  }
  loads_.Observe(environment_.members->Describe(), absl::Now());
  for (const auto& [session, served] : sessions_) {
    served.model->SetLoad(loads_.Of(session));
    if (served.model->loaded()) served.model->Reconcile();
  }
  environment_.queue->PostAfter(kLoadInterval, [this] { WatchLoad(); });
}

void ServedModels::Publish() {
  std::vector<v1::SessionInfo> infos;
  for (const auto& [session, served] : sessions_) {
    infos.push_back(served.model->Describe());
  }
  std::lock_guard<std::mutex> lock(mutex_);
  published_ = std::move(infos);
}

std::vector<v1::SessionInfo> ServedModels::Describe() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return published_;
}

}  // namespace gshard
