// A fake of CoordinatorService.Join that a test controls.

#ifndef TESTS_SERVICES_RPC_FAKE_COORDINATOR_H_
#define TESTS_SERVICES_RPC_FAKE_COORDINATOR_H_

#include <gtest/gtest.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "proto/gshard/v1/coordinator.grpc.pb.h"
#include "services/rpc/server/server_stream.h"

namespace gshard {

// One member's stream, from the coordinator's side. Each Wait...() method
// blocks until its event arrives or the stream ends.
class JoinedMember {
 public:
  using Sender = std::shared_ptr<StreamSender<v1::JoinResponse>>;

  explicit JoinedMember(Sender sender) : sender_(std::move(sender)) {}

  v1::RegisterMember WaitForRegistration() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return registration_ || end_; });
    EXPECT_TRUE(registration_.has_value());
    return registration_.value_or(v1::RegisterMember());
  }
  v1::Heartbeat WaitForHeartbeat() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return !heartbeats_.empty() || end_; });
    EXPECT_FALSE(heartbeats_.empty());
    if (heartbeats_.empty()) return {};
    v1::Heartbeat heartbeat = heartbeats_.front();
    heartbeats_.pop_front();
    return heartbeat;
  }
  // The next reply, to any command.
  v1::CommandReply WaitForReply() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return !replies_.empty() || end_; });
    EXPECT_FALSE(replies_.empty());
    if (replies_.empty()) return {};
    v1::CommandReply reply = replies_.front();
    replies_.pop_front();
    return reply;
  }
  absl::Status WaitForEnd() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return end_.has_value(); });
    return *end_;
  }

  void Accept(int64_t heartbeat_interval_ms = 1, int64_t lease_ms = 60'000,
              bool answers_leaving = false) {
    v1::JoinResponse response;
    response.mutable_accepted()->set_heartbeat_interval_ms(
        heartbeat_interval_ms);
    response.mutable_accepted()->set_lease_ms(lease_ms);
    response.mutable_accepted()->set_answers_leaving(answers_leaving);
    (void)sender_->Send(std::move(response));
  }
  void LetGo() {
    v1::JoinResponse response;
    response.mutable_may_leave()->set_reason("nothing is left");
    (void)sender_->Send(std::move(response));
  }
  void Send(const v1::Command& command) {
    v1::JoinResponse response;
    *response.mutable_command() = command;
    (void)sender_->Send(std::move(response));
  }
  // Sends a command and waits for its reply. No other command may be pending.
  v1::CommandReply Do(v1::Command command) {
    command.set_command_id(++last_command_);
    Send(command);
    v1::CommandReply reply = WaitForReply();
    EXPECT_EQ(reply.command_id(), last_command_);
    return reply;
  }
  void End(const absl::Status& status) { sender_->Finish(status); }

  // Called by the service.
  void OnMessage(v1::JoinRequest message) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (message.has_register_()) registration_ = message.register_();
    if (message.has_heartbeat()) heartbeats_.push_back(message.heartbeat());
    if (message.has_reply()) replies_.push_back(message.reply());
    changed_.notify_all();
  }
  void OnEnd(const absl::Status& status) {
    std::lock_guard<std::mutex> lock(mutex_);
    end_ = status;
    changed_.notify_all();
  }

 private:
  const Sender sender_;
  uint64_t last_command_ = 1000;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<v1::RegisterMember> registration_;
  std::deque<v1::Heartbeat> heartbeats_;
  std::deque<v1::CommandReply> replies_;
  std::optional<absl::Status> end_;
};

class FakeCoordinator final
    : public v1::CoordinatorService::WithRawCallbackMethod_Join<
          v1::CoordinatorService::Service> {
 public:
  // Waits for the next stream to begin.
  std::shared_ptr<JoinedMember> WaitForMember() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return !members_.empty(); });
    std::shared_ptr<JoinedMember> member = members_.front();
    members_.pop_front();
    return member;
  }

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Join(
      grpc::CallbackServerContext* context) override {
    return ServeStream<v1::JoinRequest, v1::JoinResponse>(
        context, [this](JoinedMember::Sender sender) {
          auto member = std::make_shared<JoinedMember>(std::move(sender));
          std::lock_guard<std::mutex> lock(mutex_);
          members_.push_back(member);
          changed_.notify_all();
          return std::make_unique<Handler>(member);
        });
  }

 private:
  class Handler final : public StreamHandler<v1::JoinRequest> {
   public:
    explicit Handler(std::shared_ptr<JoinedMember> member)
        : member_(std::move(member)) {}
    void OnMessage(v1::JoinRequest message) override {
      member_->OnMessage(std::move(message));
    }
    void OnEnd(const absl::Status& status) override { member_->OnEnd(status); }

   private:
    const std::shared_ptr<JoinedMember> member_;
  };

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<JoinedMember>> members_;
};

}  // namespace gshard

#endif  // TESTS_SERVICES_RPC_FAKE_COORDINATOR_H_
