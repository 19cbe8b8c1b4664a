#include "services/rpc/client/reaper.h"

#include <map>
#include <thread>
#include <utility>

#include "services/base/mutex.h"

namespace gshard {
namespace {

using Clock = std::chrono::steady_clock;

class Reaper {
 public:
  Reaper() {
    std::thread([this] { Run(); }).detach();
  }

  void Add(Clock::time_point due, std::function<void()> work) {
    MutexLock lock(mutex_);
    const auto added = waiting_.emplace(due, std::move(work));
    if (added == waiting_.begin()) changed_.NotifyOne();
  }

 private:
  [[noreturn]] void Run() {
    MutexLock lock(mutex_);
    while (true) {
      if (waiting_.empty()) {
        changed_.Wait(lock);
      } else if (Clock::now() < waiting_.begin()->first) {
        const Clock::time_point due = waiting_.begin()->first;
        changed_.WaitUntil(lock, due);
      } else {
        auto next = waiting_.extract(waiting_.begin());
        lock.Unlock();
        next.mapped()();
        next = {};
        lock.Lock();
      }
    }
  }

  Mutex mutex_;
  CondVar changed_;
  std::multimap<Clock::time_point, std::function<void()>> waiting_
      ABSL_GUARDED_BY(mutex_);
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
