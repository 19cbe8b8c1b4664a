#include "services/rpc/call_count.h"

#include "services/rpc/caller.h"

namespace gshard {

bool CallCount::HasRoom(const std::string& caller) const {
  std::lock_guard<std::mutex> lock(mutex_);
  if (calls_ >= most_) return false;
  const auto its = by_caller_.find(caller);
  if (its == by_caller_.end() || caller == kAnonymous) return true;
  return its->second + 1 <= 2 * (most_ - calls_ - 1);
}

void CallCount::Begin(const std::string& caller) {
  std::lock_guard<std::mutex> lock(mutex_);
  ++calls_;
  ++by_caller_[caller];
}

void CallCount::End(const std::string& caller) {
  std::lock_guard<std::mutex> lock(mutex_);
  --calls_;
  const auto its = by_caller_.find(caller);
  if (--its->second == 0) by_caller_.erase(its);
}

int64_t CallCount::calls() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return calls_;
}

}  // namespace gshard
