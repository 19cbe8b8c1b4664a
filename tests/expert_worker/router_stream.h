// RouterStream: the router's side of a stream to an expert worker.

#ifndef TESTS_EXPERT_WORKER_ROUTER_STREAM_H_
#define TESTS_EXPERT_WORKER_ROUTER_STREAM_H_

#include <gtest/gtest.h>

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "services/rpc/client/client_stream.h"
#include "services/rpc/wire/status.h"
#include "services/rpc/wire/tensor_frame.h"

namespace gshard {

class RouterStream {
 public:
  explicit RouterStream(std::shared_ptr<grpc::Channel> channel)
      : channel_(std::move(channel)), state_(std::make_shared<State>()) {
    sender_ = OpenStream<ExpertFrame, ExpertFrame>(
        channel_, "/gshard.v1.ExpertWorkerService/Run",
        [this](auto) { return std::make_unique<Handler>(state_); });
  }
  ~RouterStream() {
    sender_->Cancel();
    (void)WaitForEnd();
  }

  void Send(ExpertFrame frame) { (void)sender_->Send(std::move(frame)); }
  void Cancel() { sender_->Cancel(); }
  void HalfClose() { sender_->Finish(); }

  ExpertFrame WaitForReply() {
    std::unique_lock<std::mutex> lock(state_->mutex);
    state_->changed.wait(
        lock, [this] { return !state_->replies.empty() || state_->end; });
    EXPECT_FALSE(state_->replies.empty());
    if (state_->replies.empty()) return {};
    ExpertFrame reply = std::move(state_->replies.front());
    state_->replies.pop_front();
    return reply;
  }
  absl::Status WaitForEnd() {
    std::unique_lock<std::mutex> lock(state_->mutex);
    state_->changed.wait(lock, [this] { return state_->end.has_value(); });
    return *state_->end;
  }
  // The status of the next reply, which must be to `call_id`.
  absl::Status Outcome(uint64_t call_id) {
    const ExpertFrame reply = WaitForReply();
    EXPECT_EQ(reply.header.kind(), v1::ExpertFrameHeader::REPLY);
    EXPECT_EQ(reply.header.call_id(), call_id);
    return FromProtoStatus(reply.header.status());
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<ExpertFrame> replies;
    std::optional<absl::Status> end;
  };
  class Handler final : public StreamHandler<ExpertFrame> {
   public:
    explicit Handler(std::shared_ptr<State> state) : state_(std::move(state)) {}
    void OnMessage(ExpertFrame frame) override {
      std::lock_guard<std::mutex> lock(state_->mutex);
      state_->replies.push_back(std::move(frame));
      state_->changed.notify_all();
    }
    void OnEnd(const absl::Status& status) override {
      std::lock_guard<std::mutex> lock(state_->mutex);
      state_->end = status;
      state_->changed.notify_all();
    }

   private:
    const std::shared_ptr<State> state_;
  };

  const std::shared_ptr<grpc::Channel> channel_;
  const std::shared_ptr<State> state_;
  std::shared_ptr<StreamSender<ExpertFrame>> sender_;
};

}  // namespace gshard

#endif  // TESTS_EXPERT_WORKER_ROUTER_STREAM_H_
