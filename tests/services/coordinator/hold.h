#ifndef TESTS_SERVICES_COORDINATOR_HOLD_H_
#define TESTS_SERVICES_COORDINATOR_HOLD_H_

#include <atomic>
#include <functional>
#include <future>
#include <optional>
#include <thread>
#include <utility>

#include "tests/services/coordinator/fake_cluster.h"

namespace gshard {

// Holds back the answer to one command, so that a test can lose the member in
// the middle of it.
class Hold {
 public:
  // Holds the first command that satisfies `is`.
  FakeMember::Intercept At(std::function<bool(const v1::Command&)> is) {
    return [this, is = std::move(is)](
               const v1::Command& command) -> std::optional<v1::CommandReply> {
      if (!is(command) || held_.exchange(true)) return std::nullopt;
      reached_.set_value();
      released_.wait();
      return ReplyWith(absl::CancelledError("left"));
    };
  }
  void WaitUntilHeld() { is_reached_.wait(); }
  // Lets the member leave before it answers; returns once it has left.
  void Lose(FakeCluster& cluster, FakeMember& member) {
    WaitUntilHeld();
    const int before = cluster.Describe().members_size();
    std::thread leave([&] { member.Leave(); });
    while (cluster.Describe().members_size() == before) {
      std::this_thread::yield();
    }
    Release();
    leave.join();
  }
  void Release() { release_.set_value(); }

 private:
  std::atomic<bool> held_{false};
  std::promise<void> reached_, release_;
  std::shared_future<void> is_reached_ = reached_.get_future().share();
  std::shared_future<void> released_ = release_.get_future().share();
};

}  // namespace gshard

#endif  // TESTS_SERVICES_COORDINATOR_HOLD_H_
