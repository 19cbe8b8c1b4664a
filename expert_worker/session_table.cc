#include "expert_worker/session_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/train/parameter_source.h"

namespace gshard {

absl::Status SessionTable::BeginLoad(const std::stop_token& stop) {
  MutexLock lock(mutex_);
  load_may_run_.Wait(lock, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !load_runs_ || stop.stop_requested();
  });
  RETURN_IF_ERROR(CheckNotStopped(stop));
  load_runs_ = true;
  return absl::OkStatus();
}

absl::StatusOr<int64_t> SessionTable::Load(const std::string& id,
                                           WorkerSessionSpec spec,
                                           std::stop_source stop) {
  spec.source.stop = stop.get_token();
  {
    MutexLock lock(mutex_);
    if (sessions_.count(id) > 0 || !loading_.emplace(id, stop).second) {
      return absl::AlreadyExistsError(
          absl::StrCat("session '", id, "' is loaded already"));
    }
  }
  const absl::Status begun = BeginLoad(stop.get_token());
  absl::StatusOr<std::unique_ptr<WorkerSession>> session =
      begun.ok()
          ? WorkerSession::Create(std::move(spec), memory_, device_.get())
          : begun;
  MutexLock lock(mutex_);
  loading_.erase(id);
  if (begun.ok()) load_runs_ = false;
  load_may_run_.NotifyAll();
  RETURN_IF_ERROR(session.status());
  const int64_t bytes = (*session)->memory_bytes();
  auto entry = std::make_shared<Entry>();
  entry->session = *std::move(session);
  sessions_.emplace(id, std::move(entry));
  return bytes;
}

SessionTable::Lease SessionTable::MakeLease(std::shared_ptr<Entry> entry) {
  ++entry->leases;
  Lease lease(entry);
  lease.release_ =
      std::shared_ptr<void>(nullptr, [this, entry = std::move(entry)](void*) {
        MutexLock lock(mutex_);
        if (--entry->leases == 0) released_.NotifyAll();
      });
  return lease;
}

absl::StatusOr<SessionTable::Lease> SessionTable::Find(const std::string& id) {
  MutexLock lock(mutex_);
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) {
    return absl::NotFoundError(absl::StrCat("no session '", id, "'"));
  }
  return MakeLease(found->second);
}

void SessionTable::Unload(const std::string& id) {
  MutexLock lock(mutex_);
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return;
  const std::shared_ptr<Entry> entry = std::move(found->second);
  sessions_.erase(found);
  released_.NotifyAll();
  released_.Wait(lock, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return entry->leases == 0;
  });
  // It can no longer be found. Freeing much memory takes time, during which
  // other sessions stay accessible; the memory counts until then.
  lock.Unlock();
  entry->session = nullptr;
}

void SessionTable::Abort(const std::string& id) {
  MutexLock lock(mutex_);
  const auto loading = loading_.find(id);
  if (loading != loading_.end()) {
    loading->second.request_stop();
    load_may_run_.NotifyAll();
  }
  const auto found = sessions_.find(id);
  if (found == sessions_.end() || !found->second->session->training()) return;
  found->second->aborted = true;
}

void SessionTable::DropTraining() {
  std::vector<std::string> ids;
  {
    MutexLock lock(mutex_);
    for (const auto& [id, entry] : sessions_) {
      if (!entry->session->training()) continue;
      entry->aborted = true;
      ids.push_back(id);
    }
  }
  for (const std::string& id : ids) Unload(id);
}

bool SessionTable::AwaitNoTraining(std::chrono::milliseconds time) {
  MutexLock lock(mutex_);
  return released_.WaitFor(
      lock, time, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return std::none_of(
            sessions_.begin(), sessions_.end(), [](const auto& session) {
              return session.second->session->training() != nullptr;
            });
      });
}

void SessionTable::ForEach(
    const std::function<void(const std::string& id, WorkerSession& session)>&
        visit) {
  std::vector<std::pair<std::string, Lease>> leases;
  {
    MutexLock lock(mutex_);
    for (const auto& [id, entry] : sessions_) {
      leases.emplace_back(id, MakeLease(entry));
    }
  }
  for (const auto& [id, lease] : leases) visit(id, lease.session());
}

int64_t SessionTable::size() const {
  MutexLock lock(mutex_);
  return static_cast<int64_t>(sessions_.size());
}

}  // namespace gshard
