#ifndef TESTS_SERVICES_COORDINATOR_HOLD_H_
#define TESTS_SERVICES_COORDINATOR_HOLD_H_

#include <atomic>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "tests/services/coordinator/fake_cluster.h"
#include "tests/services/coordinator/moment.h"

namespace gshard {

// Holds back the answer to one command, so that a test can lose the member in
// the middle of it.
class Hold {
 public:
  // Holds the first command that satisfies `is`.
  FakeMember::Intercept At(Moment is) {
    return [state = state_, is = std::move(is)](
               const v1::Command& command) -> std::optional<v1::CommandReply> {
      if (!is(command) || state->held.exchange(true)) return std::nullopt;
      state->reached.set_value();
      state->released.wait();
      return ReplyWith(absl::CancelledError("left"));
    };
  }
  void WaitUntilHeld() { state_->is_reached.wait(); }
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
  void Release() { state_->release.set_value(); }

 private:
  struct State {
    std::atomic<bool> held{false};
    std::promise<void> reached, release;
    std::shared_future<void> is_reached = reached.get_future().share();
    std::shared_future<void> released = release.get_future().share();
  };
  // The member's thread may outlive this object.
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace gshard

#endif  // TESTS_SERVICES_COORDINATOR_HOLD_H_
