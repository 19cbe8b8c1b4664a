// ReplyMailbox: where the thread of a run waits for the replies of workers.

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
    int64_t piece = 0;  // of the run
    int slice = 0;
    absl::StatusOr<std::vector<Tensor>> tensors;
    Time at;
  };

  void Put(Reply reply) {
    std::lock_guard<std::mutex> lock(mutex_);
    replies_.push_back(std::move(reply));
    changed_.notify_one();
  }

  // Whoever waits, waits no more, now and later.
  void Stop() {
    std::lock_guard<std::mutex> lock(mutex_);
    stopped_ = true;
    changed_.notify_one();
  }
  bool stopped() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return stopped_;
  }

  // What has come, as soon as something has or it is `until`; nullopt once it
  // was stopped.
  std::optional<std::vector<Reply>> WaitUntil(Time until) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_until(lock, until,
                        [this] { return stopped_ || !replies_.empty(); });
    if (stopped_) return std::nullopt;
    return std::exchange(replies_, {});
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Reply> replies_;  // guarded by mutex_
  bool stopped_ = false;        // guarded by mutex_
};

}  // namespace gshard

#endif  // SERVICES_EXCHANGE_REPLY_MAILBOX_H_
