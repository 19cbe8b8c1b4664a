#include "services/coordinator/store/progress_feed.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace gshard {

std::string JobStateName(v1::JobState state) {
  const std::string& name = v1::JobState_Name(state);
  if (name.empty()) return absl::StrCat("state ", static_cast<int>(state));
  return absl::AsciiStrToLower(absl::StripPrefix(name, "JOB_STATE_"));
}

bool IsOver(v1::JobState state) {
  return state == v1::JOB_STATE_SUCCEEDED || state == v1::JOB_STATE_FAILED ||
         state == v1::JOB_STATE_CANCELLED;
}

void ProgressFeed::Publish(const v1::JobProgress& progress) {
  MutexLock lock(mutex_);
  latest_ = progress;
  for (const auto& [id, listener] : listeners_) listener(&latest_);
}

void ProgressFeed::Update(const v1::JobProgress& progress) {
  MutexLock lock(mutex_);
  latest_ = progress;
}

void ProgressFeed::Close() {
  MutexLock lock(mutex_);
  closed_ = true;
  for (const auto& [id, listener] : listeners_) listener(nullptr);
}

v1::JobProgress ProgressFeed::Latest() const {
  MutexLock lock(mutex_);
  return latest_;
}

bool ProgressFeed::over() const {
  MutexLock lock(mutex_);
  return IsOver(latest_.state());
}

int64_t ProgressFeed::Listen(Listener listener) {
  MutexLock lock(mutex_);
  listener(&latest_);
  if (closed_) listener(nullptr);
  listeners_[++last_id_] = std::move(listener);
  return last_id_;
}

void ProgressFeed::Remove(int64_t id) {
  MutexLock lock(mutex_);
  listeners_.erase(id);
}

}  // namespace gshard
