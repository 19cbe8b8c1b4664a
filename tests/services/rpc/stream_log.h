// StreamLog records what happens on one side of a stream. Its handlers share
// the state, because a server's handlers may outlive Drain().

#ifndef TESTS_SERVICES_RPC_STREAM_LOG_H_
#define TESTS_SERVICES_RPC_STREAM_LOG_H_

#include <gtest/gtest.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "services/rpc/wire/stream.h"

namespace gshard {

template <typename In, typename Out>
class StreamLog {
 public:
  using Sender = std::shared_ptr<StreamSender<Out>>;
  using Reaction = std::function<void(const Sender&, const In&)>;

  explicit StreamLog(Reaction reaction = nullptr) {
    state_->reaction = std::move(reaction);
  }

  // A factory of handlers that record to this log.
  StreamHandlerFactory<In, Out> Factory() {
    return [state = state_](Sender sender) {
      {
        std::lock_guard<std::mutex> lock(state->mutex);
        state->sender = sender;
        state->changed.notify_all();
      }
      return std::make_unique<Handler>(state, sender);
    };
  }

  Sender WaitForSender() {
    std::unique_lock<std::mutex> lock(state_->mutex);
    state_->changed.wait(lock, [this] { return state_->sender != nullptr; });
    return state_->sender;
  }
  In WaitForMessage() {
    std::unique_lock<std::mutex> lock(state_->mutex);
    state_->changed.wait(
        lock, [this] { return !state_->messages.empty() || state_->end; });
    if (state_->messages.empty()) {
      ADD_FAILURE() << "the stream ended: " << state_->end->ToString();
      return In();
    }
    In message = std::move(state_->messages.front());
    state_->messages.pop_front();
    return message;
  }
  absl::Status WaitForEnd() {
    std::unique_lock<std::mutex> lock(state_->mutex);
    state_->changed.wait(lock, [this] { return state_->end.has_value(); });
    return *state_->end;
  }

 private:
  struct State {
    Reaction reaction;
    std::mutex mutex;
    std::condition_variable changed;
    Sender sender;
    std::deque<In> messages;
    std::optional<absl::Status> end;
  };

  class Handler final : public StreamHandler<In> {
   public:
    Handler(std::shared_ptr<State> state, Sender sender)
        : state_(std::move(state)), sender_(std::move(sender)) {}

    void OnMessage(In message) override {
      if (state_->reaction) state_->reaction(sender_, message);
      std::lock_guard<std::mutex> lock(state_->mutex);
      EXPECT_FALSE(state_->end.has_value());
      state_->messages.push_back(std::move(message));
      state_->changed.notify_all();
    }
    void OnEnd(const absl::Status& status) override {
      std::lock_guard<std::mutex> lock(state_->mutex);
      EXPECT_FALSE(state_->end.has_value());
      state_->end = status;
      state_->changed.notify_all();
    }

   private:
    const std::shared_ptr<State> state_;
    const Sender sender_;
  };

  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

using FrameLog = StreamLog<ExpertFrame, ExpertFrame>;

}  // namespace gshard

#endif  // TESTS_SERVICES_RPC_STREAM_LOG_H_
