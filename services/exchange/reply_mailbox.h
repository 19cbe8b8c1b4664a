// ReplyMailbox: collects the replies of workers for a waiting thread.

#ifndef SERVICES_EXCHANGE_REPLY_MAILBOX_H_
#define SERVICES_EXCHANGE_REPLY_MAILBOX_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "services/base/mutex.h"
#include "services/tensor/tensor.h"

namespace gshard {

// Thread-safe; only one thread may wait.
class ReplyMailbox {
 public:
  using Time = std::chrono::steady_clock::time_point;

  struct Reply {
    int64_t number = 0;  // of the request, chosen by the thread
    absl::StatusOr<std::vector<Tensor>> tensors;
    Time at;
  };

  void Put(Reply reply) {
    {
      MutexLock lock(mutex_);
      replies_.push_back(std::move(reply));
    }
    // Without the lock: a thread woken while it is held would block again at
    // once.
    changed_.NotifyOne();
  }

  // Ends the current or next wait, even without replies.
  void Wake() {
    MutexLock lock(mutex_);
    woken_ = true;
    changed_.NotifyOne();
  }

  // Ends the current wait and all later ones.
  void Stop() {
    MutexLock lock(mutex_);
    stopped_ = true;
    changed_.NotifyOne();
  }
  bool stopped() const {
    MutexLock lock(mutex_);
    return stopped_;
  }

  // Waits for a reply, Wake() or `until`, and returns the replies received,
  // possibly none; nullopt after Stop().
  std::optional<std::vector<Reply>> WaitUntil(Time until) {
    MutexLock lock(mutex_);
    changed_.WaitUntil(lock, until,
                       [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                         return stopped_ || woken_ || !replies_.empty();
                       });
    if (stopped_) return std::nullopt;
    woken_ = false;
    return std::exchange(replies_, {});
  }

 private:
  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<Reply> replies_ ABSL_GUARDED_BY(mutex_);
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace gshard

#endif  // SERVICES_EXCHANGE_REPLY_MAILBOX_H_
