// ReplyMailbox: where a thread waits for the replies of workers.

#ifndef SERVICES_EXCHANGE_REPLY_MAILBOX_H_
#define SERVICES_EXCHANGE_REPLY_MAILBOX_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "services/tensor/tensor.h"

namespace gshard {

// Thread-safe; one thread waits.
class ReplyMailbox {
 public:
  using Time = std::chrono::steady_clock::time_point;

  struct Reply {
    int64_t number = 0;  // of what was asked, as the thread counts
    int slice = 0;
    absl::StatusOr<std::vector<Tensor>> tensors;
    Time at;
  };

  void Put(Reply reply) {
    std::lock_guard<std::mutex> lock(mutex_);
    replies_.push_back(std::move(reply));
    changed_.notify_one();
  }

  // Ends the wait, or the next one, though nothing has come.
  void Wake() {
    std::lock_guard<std::mutex> lock(mutex_);
    woken_ = true;
    changed_.notify_one();
  }

  // Ends the wait, and all that follow.
  void Stop() {
    std::lock_guard<std::mutex> lock(mutex_);
    stopped_ = true;
    changed_.notify_one();
  }
  bool stopped() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return stopped_;
  }

  // What has come, as soon as something has, it is woken or it is `until`;
  // nullopt once it was stopped.
  std::optional<std::vector<Reply>> WaitUntil(Time until) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_until(lock, until, [this] {
      return stopped_ || woken_ || !replies_.empty();
    });
    if (stopped_) return std::nullopt;
    woken_ = false;
    return std::exchange(replies_, {});
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Reply> replies_;  // guarded by mutex_
  bool woken_ = false;          // guarded by mutex_
  bool stopped_ = false;        // guarded by mutex_
};

}  // namespace gshard

#endif  // SERVICES_EXCHANGE_REPLY_MAILBOX_H_
