// CallCount: the open calls of a server, in total and per caller, and whether
// another one may be accepted.

#ifndef SERVICES_RPC_SERVER_CALL_COUNT_H_
#define SERVICES_RPC_SERVER_CALL_COUNT_H_

#include <cstdint>
#include <map>
#include <string>

#include "services/base/mutex.h"

namespace gshard {

// Thread-safe.
class CallCount {
 public:
  explicit CallCount(int64_t most) : most_(most) {}

  // Whether `caller` may begin another call: if fewer than `most` calls are
  // open in total, and a known caller stays within its share
  // (services/base/share.h). All unknown callers have the same name, so they
  // have no shares.
  bool HasRoom(const std::string& caller) const;

  // Counts the call if there is room; returns whether there was.
  [[nodiscard]] bool TryBegin(const std::string& caller);
  // Counts the call, whether there is room or not.
  void Begin(const std::string& caller);
  void End(const std::string& caller);

  int64_t calls() const;
  int64_t most() const { return most_; }

 private:
  bool HasRoomFor(const std::string& caller) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Count(const std::string& caller) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int64_t most_;
  mutable Mutex mutex_;
  int64_t calls_ ABSL_GUARDED_BY(mutex_) = 0;
  // No value is 0.
  std::map<std::string, int64_t> by_caller_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gshard

#endif  // SERVICES_RPC_SERVER_CALL_COUNT_H_
