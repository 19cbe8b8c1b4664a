#include "services/rpc/client/reaper.h"

#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

namespace gshard {
namespace {

using Clock = std::chrono::steady_clock;

class Reaper {
 public:
  Reaper() {
    std::thread([this] { Run(); }).detach();
  }

  void Add(Clock::time_point due, std::function<void()> work) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto added = waiting_.emplace(due, std::move(work));
    if (added == waiting_.begin()) changed_.notify_one();
  }

 private:
  [[noreturn]] void Run() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      if (waiting_.empty()) {
        changed_.wait(lock);
      } else if (Clock::now() < waiting_.begin()->first) {
        const Clock::time_point due = waiting_.begin()->first;
        changed_.wait_until(lock, due);
      } else {
        auto next = waiting_.extract(waiting_.begin());
        lock.unlock();
        next.mapped()();
        next = {};
        lock.lock();
      }
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::multimap<Clock::time_point, std::function<void()>>
      waiting_;  // guarded by mutex_
};

}  // namespace

void ReapAfter(std::chrono::milliseconds delay, std::function<void()> work) {
  static Reaper* const reaper = new Reaper();  // outlives all streams
  reaper->Add(Clock::now() + delay, std::move(work));
}

void ReapChannel(std::shared_ptr<grpc::Channel> channel) {
  ReapAfter(std::chrono::milliseconds(0),
            [channel = std::move(channel)]() mutable { channel = nullptr; });
}

}  // namespace gshard
