// A minimal expert worker: runs segments where their frames arrive, or
// misbehaves as told.

#ifndef TESTS_ROUTER_FAKE_WORKER_H_
#define TESTS_ROUTER_FAKE_WORKER_H_

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/gshard/v1/expert.grpc.pb.h"
#include "services/rpc/client/channel.h"
#include "services/rpc/server/server.h"
#include "services/rpc/server/server_stream.h"
#include "services/rpc/shared/shared_stream.h"
#include "services/rpc/wire/status.h"
#include "services/segments/segment_host.h"
#include "tests/testing/status_matchers.h"

namespace gshard {

class FakeWorker {
 public:
  using Sender = std::shared_ptr<StreamSender<ExpertFrame>>;
  using OnGradient =
      std::function<void(const std::string& parameter, Tensor gradient)>;

  FakeWorker(const std::vector<Segment>& segments, TensorMap parameters,
             OnGradient on_gradient = nullptr,
             const SharingOptions& sharing = {},
             const std::string& address = SocketAddress())
      : state_(std::make_shared<State>(segments, std::move(parameters),
                                       std::move(on_gradient))),
        service_(state_, sharing),
        server_({.address = address}) {
    server_.AddService(&service_, v1::ExpertWorkerService::service_full_name());
    EXPECT_OK(server_.Start());
  }
  ~FakeWorker() { server_.Drain(std::chrono::milliseconds(0)); }

  // Passes later RUN frames to `action` instead of running them; null runs them
  // again.
  void Instead(std::function<void(const Sender&, const ExpertFrame&)> action) {
    std::lock_guard<std::mutex> lock(state_->mutex);
    state_->action = std::move(action);
  }

  // Runs a frame that was passed to Instead()'s action.
  void RunNow(const Sender& sender, ExpertFrame frame) {
    state_->Run(sender, std::move(frame));
  }

  // Whether PINGs are answered; initially true.
  void AnswerPings(bool answer) { state_->answer_pings = answer; }

  // Later PINGs get this answer; OK: as their session is there or not.
  void SetPingStatus(absl::Status status) {
    std::lock_guard<std::mutex> lock(state_->mutex);
    state_->ping_status = std::move(status);
  }

  // Later calls and pings of these sessions are answered with NOT_FOUND.
  void Lack(std::set<std::string> sessions) {
    std::lock_guard<std::mutex> lock(state_->mutex);
    state_->lacking = std::move(sessions);
  }

  int pings() const { return state_->pings; }

  // The number of RUN frames so far.
  size_t runs() const {
    std::lock_guard<std::mutex> lock(state_->mutex);
    return std::count_if(state_->frames.begin(), state_->frames.end(),
                         [](const v1::ExpertFrameHeader& header) {
                           return header.kind() == v1::ExpertFrameHeader::RUN;
                         });
  }

  // Returns the headers of all frames once there are at least `count`.
  std::vector<v1::ExpertFrameHeader> WaitForFrames(size_t count) {
    std::unique_lock<std::mutex> lock(state_->mutex);
    state_->changed.wait(lock, [&] { return state_->frames.size() >= count; });
    return state_->frames;
  }
  int streams() const {
    std::lock_guard<std::mutex> lock(state_->mutex);
    return state_->streams;
  }

  std::string address() const { return server_.address(); }
  std::shared_ptr<grpc::Channel> Channel() {
    auto channel = CreateChannel(server_.address());
    EXPECT_OK(channel);
    return *channel;
  }

 private:
  struct State {
    State(const std::vector<Segment>& segments, TensorMap parameters,
          OnGradient on_gradient)
        : host(segments),
          parameters(std::move(parameters)),
          on_gradient(std::move(on_gradient)) {}

    void Run(const Sender& sender, ExpertFrame frame) {
      TensorMap inputs;
      for (size_t i = 0; i < frame.tensors.size(); ++i) {
        inputs[frame.header.tensors(i).name()] = std::move(frame.tensors[i]);
      }
      auto result = host.Run(frame.header.segment(), frame.header.session(),
                             std::move(inputs), parameters);
      ExpertFrame reply;
      reply.header.set_kind(v1::ExpertFrameHeader::REPLY);
      reply.header.set_call_id(frame.header.call_id());
      *reply.header.mutable_status() = ToProtoStatus(result.status());
      if (result.ok()) {
        for (auto& [parameter, gradient] : result->gradients) {
          if (on_gradient) on_gradient(parameter, std::move(gradient));
        }
        for (Tensor& tensor : result->replies) {
          reply.Add("", std::move(tensor));
        }
      }
      (void)sender->Send(std::move(reply));
    }

    SegmentHost host;
    const TensorMap parameters;
    const OnGradient on_gradient;
    mutable std::mutex mutex;
    std::condition_variable changed;
    std::function<void(const Sender&, const ExpertFrame&)> action;
    std::set<std::string> lacking;
    absl::Status ping_status;
    std::vector<v1::ExpertFrameHeader> frames;
    int streams = 0;
    std::atomic<bool> answer_pings = true;
    std::atomic<int> pings = 0;
  };

  class Reader final : public StreamHandler<ExpertFrame> {
   public:
    Reader(std::shared_ptr<State> state, Sender sender)
        : state_(std::move(state)), sender_(std::move(sender)) {}

    void OnMessage(ExpertFrame frame) override {
      if (frame.header.kind() == v1::ExpertFrameHeader::PING) {
        ++state_->pings;
        if (!state_->answer_pings) return;
        return Answer(frame, PingStatus(frame));
      }
      std::function<void(const Sender&, const ExpertFrame&)> action;
      {
        std::lock_guard<std::mutex> lock(state_->mutex);
        state_->frames.push_back(frame.header);
        action = state_->action;
        state_->changed.notify_all();
      }
      if (frame.header.kind() != v1::ExpertFrameHeader::RUN) return;
      const absl::Status found = CheckSession(frame);
      if (!found.ok()) {
        Answer(frame, found);
      } else if (action != nullptr) {
        action(sender_, frame);
      } else {
        state_->Run(sender_, std::move(frame));
      }
    }
    void OnEnd(const absl::Status&) override {}

   private:
    absl::Status PingStatus(const ExpertFrame& frame) {
      std::unique_lock<std::mutex> lock(state_->mutex);
      if (!state_->ping_status.ok()) return state_->ping_status;
      lock.unlock();
      return CheckSession(frame);
    }
    absl::Status CheckSession(const ExpertFrame& frame) {
      const std::string& session = frame.header.session();
      std::lock_guard<std::mutex> lock(state_->mutex);
      if (!state_->lacking.contains(session)) return absl::OkStatus();
      return absl::NotFoundError(absl::StrCat("no session '", session, "'"));
    }
    void Answer(const ExpertFrame& frame, const absl::Status& status) {
      ExpertFrame reply;
      reply.header.set_kind(v1::ExpertFrameHeader::REPLY);
      reply.header.set_call_id(frame.header.call_id());
      *reply.header.mutable_status() = ToProtoStatus(status);
      (void)sender_->Send(std::move(reply));
    }

    const std::shared_ptr<State> state_;
    const Sender sender_;
  };

  class Service final
      : public v1::ExpertWorkerService::WithRawCallbackMethod_Run<
            v1::ExpertWorkerService::Service> {
   public:
    Service(std::shared_ptr<State> state, SharingOptions sharing)
        : state_(std::move(state)), sharing_(std::move(sharing)) {}

    grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Run(
        grpc::CallbackServerContext* context) override {
      const auto make_reader = [this](Sender sender) {
        std::lock_guard<std::mutex> lock(state_->mutex);
        ++state_->streams;
        return std::make_unique<Reader>(state_, std::move(sender));
      };
      return ServeStream<ExpertFrame, ExpertFrame>(
          context, AcceptSharedMemory(make_reader, sharing_));
    }

   private:
    const std::shared_ptr<State> state_;
    const SharingOptions sharing_;
  };

  // A new address on each call.
  static std::string SocketAddress() {
    static std::atomic<int> count = 0;
    return absl::StrCat("unix:", ::testing::TempDir(), "gshard-worker-",
                        getpid(), "-", ++count);
  }

  const std::shared_ptr<State> state_;
  Service service_;
  ServerShell server_;
};

}  // namespace gshard

#endif  // TESTS_ROUTER_FAKE_WORKER_H_
