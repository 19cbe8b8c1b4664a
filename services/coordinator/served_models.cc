#include "services/coordinator/served_models.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "services/base/log.h"
#include "services/base/status_macros.h"

namespace gshard {
namespace {

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

bool SameFolder(const std::string& a, const std::string& b) {
  std::error_code error;
  return a == b || std::filesystem::equivalent(a, b, error);
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

ServedModels::ServedModels(
    Members* members, TaskQueue* queue,
    std::function<int64_t()> next_placement_version,
    std::function<void(const std::string&, const v1::Placement&)>
        keep_placement,
    Options options)
    : environment_{
          .members = members,
          .queue = queue,
          .next_placement_version = std::move(next_placement_version),
          .keep_placement = std::move(keep_placement),
          .on_change = [this] { Publish(); },
          .is_needed =
              [this](const MemberKey& worker, const std::string& session) {
                return IsNeeded(worker, session);
              },
          .retry_pause = options.retry_pause},
      options_(options),
      loads_(options.load_half_life) {}

void ServedModels::Load(const Request& request, OnLoaded done) {
  const absl::Status sound = CheckRequest(request);
  if (!sound.ok()) return done(sound);
  absl::StatusOr<ServableCheckpoint> checkpoint =
      OpenToServe(request.checkpoint_directory);
  if (!checkpoint.ok()) return done(checkpoint.status());
  const absl::StatusOr<std::string> named = SessionOf(request, *checkpoint);
  if (!named.ok()) return done(named.status());
  const std::string& session = *named;
  const auto found = sessions_.find(session);
  if (found != sessions_.end()) {
    Served& served = found->second;
    if (request.replicas != 0) {
      served.request.replicas = request.replicas;
      served.model->SetReplicas(request.replicas);
    }
    if (served.model->loaded()) return done(session);
    served.waiting.push_back(std::move(done));
    return;
  }
  // What it stands for from now on, whatever comes into the folder.
  Request exact = request;
  exact.version = session.substr(request.name.size() + 1);
  exact.checkpoint_directory = checkpoint->directory;
  // Another version that routers have, of this coordinator or the one before.
  const auto is_other = [&](const auto& other) {
    return other.first != session &&
           absl::StartsWith(other.first, absl::StrCat(request.name, "@"));
  };
  const bool replaces =
      std::any_of(sessions_.begin(), sessions_.end(), is_other) ||
      std::any_of(kept_.begin(), kept_.end(), is_other);
  const int64_t number = ++last_number_;
  const auto kept = kept_.find(session);
  auto model = ServedModel::Create(
      environment_, session, *std::move(checkpoint),
      request.replicas == 0 ? options_.replicas : request.replicas, replaces,
      kept == kept_.end() ? v1::Placement() : kept->second,
      [this, session, number](const absl::Status& status) {
        // Not from inside of the model, which may go.
        environment_.queue->Post([this, session, number, status] {
          OnLoadedModel(session, number, status);
        });
      });
  if (!model.ok()) return done(model.status());
  const absl::Status started = (*model)->Start();
  if (!started.ok()) return done(started);
  kept_.erase(session);
  sessions_[session] = {.model = *std::move(model),
                        .request = std::move(exact),
                        .number = number,
                        .waiting = {std::move(done)}};
  Publish();
}

absl::StatusOr<std::string> ServedModels::SessionOf(
    const Request& request, const ServableCheckpoint& checkpoint) const {
  const auto is_free = [&](const std::string& session) {
    const auto found = sessions_.find(session);
    return found == sessions_.end() ||
           SameFolder(found->second.model->checkpoint().directory,
                      checkpoint.directory);
  };
  const std::string& version = request.version;
  std::string session =
      absl::StrCat(request.name, "@",
                   version.empty() ? absl::StrCat(checkpoint.step) : version);
  if (!version.empty() && !is_free(session)) {
    return absl::AlreadyExistsError(
        absl::StrCat("version: ", session, " is served from ",
                     sessions_.at(session).model->checkpoint().directory,
                     "; expected another version for ", checkpoint.directory));
  }
  // Another training may end at the same step.
  for (int i = 2; !is_free(session); ++i) {
    session = absl::StrCat(request.name, "@", checkpoint.step, "-", i);
  }
  return session;
}

const ServedModels::Request* ServedModels::Find(
    const std::string& session) const {
  const auto found = sessions_.find(session);
  return found == sessions_.end() ? nullptr : &found->second.request;
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

void ServedModels::Watch() {
  if (std::exchange(watching_, true)) return;
  environment_.queue->PostAfter(options_.watch_interval, [this] { Look(); });
}

void ServedModels::Look() {
  const std::vector<v1::Member> members = environment_.members->Describe();
  loads_.Observe(members, MonotonicTime::Now());
  for (const auto& [session, served] : sessions_) {
    served.model->SetLoad(loads_.Of(session));
    if (served.model->loaded()) served.model->Reconcile();
  }
  ReleaseForgotten(members);
  environment_.queue->PostAfter(options_.watch_interval, [this] { Look(); });
}

bool ServedModels::IsNeeded(const MemberKey& member,
                            const std::string& session) const {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (awaited_.contains(session.substr(0, session.find('@')))) return true;
  }
  const auto served = sessions_.find(session.substr(0, session.find('#')));
  if (served == sessions_.end()) return false;
  return served->first == session ||
         served->second.model->MayUse(member, session);
}

void ServedModels::ReleaseForgotten(const std::vector<v1::Member>& members) {
  std::map<std::string, MemberKey> keys;
  for (const Member& member : environment_.members->List()) {
    keys[member.info.id] = KeyOf(member);
  }
  // Routers finish their calls before they let go.
  std::set<std::string> with_routers;
  for (const v1::Member& member : members) {
    if (member.role() != v1::MEMBER_ROLE_ROUTER) continue;
    for (const v1::SessionLoad& load : member.heartbeat().session_loads()) {
      with_routers.insert(load.session());
    }
  }
  std::set<std::pair<MemberKey, std::string>> forgotten;
  for (const v1::Member& member : members) {
    const auto key = keys.find(member.name());
    if (key == keys.end()) continue;  // it has just left
    for (const v1::SessionLoad& load : member.heartbeat().session_loads()) {
      const std::string& session = load.session();
      if (IsNeeded(key->second, session)) continue;
      if (member.role() != v1::MEMBER_ROLE_ROUTER &&
          with_routers.count(session.substr(0, session.find('#'))) > 0) {
        continue;
      }
      const std::pair entry(key->second, session);
      // At the first look it may be one that is being released.
      if (forgotten_.count(entry) == 0) {
        forgotten.insert(entry);
        continue;
      }
      LogInfo("a session that nobody needs is released",
              {{"member", member.name()}, {"session", session}});
      v1::Command command;
      command.mutable_unload_session()->set_session(session);
      environment_.members->Send(key->second, std::move(command),
                                 [](const auto&) {});
    }
  }
  forgotten_ = std::move(forgotten);
}

void ServedModels::Publish() {
  std::vector<v1::SessionInfo> infos;
  for (const auto& [session, served] : sessions_) {
    infos.push_back(served.model->Describe());
  }
  options_.gauges.Set(infos);
  std::lock_guard<std::mutex> lock(mutex_);
  published_ = std::move(infos);
}

void ServedModels::SetAwaited(std::set<std::string> names) {
  std::lock_guard<std::mutex> lock(mutex_);
  awaited_ = std::move(names);
}

std::set<std::string> ServedModels::Names() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::set<std::string> names = awaited_;
  for (const v1::SessionInfo& info : published_) {
    names.insert(info.session().substr(0, info.session().find('@')));
  }
  return names;
}

std::vector<v1::SessionInfo> ServedModels::Describe() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return published_;
}

}  // namespace gshard
