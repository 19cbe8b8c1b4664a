#include "services/rpc/server/call_count.h"

#include "services/base/share.h"
#include "services/rpc/security/caller.h"

namespace gshard {

bool CallCount::HasRoom(const std::string& caller) const {
  MutexLock lock(mutex_);
  return HasRoomFor(caller);
}

bool CallCount::TryBegin(const std::string& caller) {
  MutexLock lock(mutex_);
  if (!HasRoomFor(caller)) return false;
  Count(caller);
  return true;
}

bool CallCount::HasRoomFor(const std::string& caller) const {
  const auto found = by_caller_.find(caller);
  const bool has_some = found != by_caller_.end() && caller != kAnonymous;
  return IsWithinShare(has_some ? found->second : 0, 1, most_ - calls_ - 1);
}

void CallCount::Begin(const std::string& caller) {
  MutexLock lock(mutex_);
  Count(caller);
}

void CallCount::Count(const std::string& caller) {
  ++calls_;
  ++by_caller_[caller];
}

void CallCount::End(const std::string& caller) {
  MutexLock lock(mutex_);
  --calls_;
  const auto its = by_caller_.find(caller);
  if (--its->second == 0) by_caller_.erase(its);
}

int64_t CallCount::calls() const {
  MutexLock lock(mutex_);
  return calls_;
}

}  // namespace gshard
