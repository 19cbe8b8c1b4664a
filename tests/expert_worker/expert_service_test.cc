// ExpertService over a unix socket, with the frames that routers send.

#include "expert_worker/expert_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "services/base/retry_delay.h"
#include "services/base/status_macros.h"
#include "services/partition/ops/collective_ops.h"
#include "services/rpc/client/channel.h"
#include "services/rpc/server/server.h"
#include "services/rpc/wire/status.h"
#include "tests/expert_worker/router_stream.h"
#include "tests/expert_worker/training_model.h"
#include "tests/integration/temporary_directory.h"
#include "tests/testing/fake_device.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr std::chrono::milliseconds kLongGrace{300'000};

// Records the calls of one microbatch, run locally.
class CallRecorder final : public LocalExchange {
 public:
  CallRecorder(const ExpertsOfWorkers& experts, WorkerSession* session)
      : LocalExchange(experts, [this, session](int, const WorkerCall& call) {
          return Record(call, session);
        }) {}

  struct Recorded {
    std::string segment;
    std::vector<std::pair<std::string, Tensor>> inputs;
    std::vector<Tensor> replies;
  };
  std::vector<Recorded> recorded;

 private:
  absl::StatusOr<std::vector<Tensor>> Record(const WorkerCall& call,
                                             WorkerSession* session) {
    SegmentRun run;
    run.segment = std::string(call.segment);
    run.step = 1;
    Recorded& kept = recorded.emplace_back(Recorded{run.segment, {}, {}});
    TensorMap inputs;
    for (const auto& [name, tensor] : call.inputs) {
      kept.inputs.emplace_back(name, tensor.Clone());
      inputs[std::string(name)] = tensor.Clone();
    }
    ASSIGN_OR_RETURN(std::vector<Tensor> replies,
                     session->RunSegment(run, std::move(inputs)));
    for (const Tensor& reply : replies) kept.replies.push_back(reply.Clone());
    return replies;
  }
};

class ExpertServiceTest : public ::testing::Test {
 protected:
  ExpertServiceTest() : job_(SmallJob()), roles_(SplitTraining(job_)) {
    const std::vector<int32_t> all = {0, 1, 2, 3, 4};
    auto session = WorkerSession::Create(
        TrainingSpec(job_, roles_.segments, all), kMemory);
    CHECK(session.ok());
    CallRecorder recorder({all}, session->get());
    ParameterStore dense(SpecsOf(job_.model, false), {},
                         MakeOptimizer(job_.optimizer));
    CHECK(dense.Load(nullptr, job_.seed).ok());
    CHECK(
        MicrobatchRunner(job_.model, roles_.router)
            .Run(RandomBatch(1, 0), job_.seed, 1, 0, dense.tensors(), &recorder)
            .ok());
    calls_ = std::move(recorder.recorded);
    CHECK(sessions_.Load("small/1", TrainingSpec(job_, roles_.segments, all))
              .ok());
    options_.queue.now = [this] {
      return WorkQueue::TimePoint(milliseconds(now_ms_));
    };
  }
  ~ExpertServiceTest() override {
    // The router's side must go before the server.
    router_.reset();
    server_.reset();
  }

  void Start(SessionTable* sessions = nullptr) {
    service_ = std::make_unique<ExpertService>(
        sessions == nullptr ? &sessions_ : sessions, options_);
    // Uses a socket: gRPC 1.51's in-process transport sometimes frees a message
    // twice when a server ends a stream that is being written to.
    server_ = std::make_unique<ServerShell>(
        ServerOptions{.address = "unix:" + directory_.path() + "/worker"});
    server_->AddService(service_.get(),
                        v1::ExpertWorkerService::service_full_name());
    server_->OnDrain([this] { service_->FinishAccepted(kLongGrace); });
    ASSERT_OK(server_->Start());
    router_ =
        std::make_unique<RouterStream>(*CreateChannel(server_->address()));
  }

  // Call `i` of the microbatch.
  ExpertFrame Frame(uint64_t call_id, size_t i = 0) const {
    ExpertFrame frame;
    frame.header.set_kind(v1::ExpertFrameHeader::RUN);
    frame.header.set_call_id(call_id);
    frame.header.set_session("small/1");
    frame.header.set_segment(calls_[i].segment);
    frame.header.set_step(1);
    frame.header.set_timeout_ms(1000);
    for (const auto& [name, tensor] : calls_[i].inputs) {
      frame.Add(name, tensor);
    }
    return frame;
  }
  static ExpertFrame CancelFrame(uint64_t call_id) {
    ExpertFrame frame;
    frame.header.set_kind(v1::ExpertFrameHeader::CANCEL);
    frame.header.set_call_id(call_id);
    return frame;
  }

  absl::Status Ping(uint64_t call_id) {
    ExpertFrame frame = Frame(call_id);
    frame.header.set_kind(v1::ExpertFrameHeader::PING);
    router_->Send(std::move(frame));
    return router_->Outcome(call_id);
  }
  // A call to the served model "small@1".
  ExpertFrame ServedFrame(uint64_t call_id) const {
    const Program& program = served_.front().program;
    ExpertFrame frame;
    frame.header.set_kind(v1::ExpertFrameHeader::RUN);
    frame.header.set_call_id(call_id);
    frame.header.set_session("small@1");
    frame.header.set_segment(served_.front().name);
    frame.header.set_timeout_ms(1000);
    const int64_t experts = job_.model.experts;
    for (const Node* node : program.NodesOf("input")) {
      const bool sizes =
          program.type(node->outputs[0]).type == ElementType::kInt32;
      frame.Add(StringAttribute(node->attributes, "name"),
                sizes ? Tensor::Ints({experts}, {1, 1, 1, 1, 1})
                      : RandomTensor({experts, job_.model.model_width}, 1));
    }
    return frame;
  }
  absl::Status LoadServed() {
    ASSIGN_OR_RETURN(const Program encode, BuildEncodeProgram(job_.model));
    ASSIGN_OR_RETURN(RolePrograms roles, SplitRoles(encode));
    served_ = std::move(roles.segments);
    WorkerSessionSpec spec = TrainingSpec(job_, served_, {0, 1, 2, 3, 4});
    std::erase_if(spec.parameters, [&](const ParameterSpec& parameter) {
      return !absl::StartsWith(parameter.name, "encoder");
    });
    spec.optimizer = nullptr;
    return sessions_.Load("small@1", std::move(spec)).status();
  }

  // Holds the only thread for training, or for serving, until the returned
  // promise is set.
  std::shared_ptr<std::promise<void>> HoldThread(bool training = true) {
    auto release = std::make_shared<std::promise<void>>();
    std::promise<void> begun;
    const auto released = release->get_future().share();
    CHECK(const_cast<WorkQueue&>(service_->queue(training))
              .Add({.stream = 0,
                    .call_id = 0,
                    .bytes = 0,
                    .deadline = WorkQueue::TimePoint::max(),
                    .run =
                        [&begun, released](auto&, auto) {
                          begun.set_value();
                          released.wait();
                        }})
              .ok());
    begun.get_future().wait();
    return release;
  }
  // Returns when exactly `count` calls wait.
  void WaitForWaiting(int count) {
    while (service_->waiting() != count) std::this_thread::yield();
  }

  size_t open_runs() {
    auto lease = sessions_.Find("small/1");
    CHECK(lease.ok());
    return lease->session().training()->open_runs();
  }

  const TrainingJob job_;
  const RolePrograms roles_;
  std::vector<CallRecorder::Recorded> calls_;
  std::vector<Segment> served_;
  std::atomic<int> now_ms_ = 0;
  ExpertServiceOptions options_;
  SessionTable sessions_{kMemory};
  std::unique_ptr<ExpertService> service_;
  const TemporaryDirectory directory_;
  std::unique_ptr<ServerShell> server_;
  std::unique_ptr<RouterStream> router_;
};

TEST_F(ExpertServiceTest, RunsAMicrobatchToTheBit) {
  Start();
  int64_t rows = 0;
  for (size_t i = 0; i < calls_.size(); ++i) {
    EXPECT_EQ(open_runs(), i == 0 ? 0u : 1u);
    router_->Send(Frame(i, i));
    const ExpertFrame reply = router_->WaitForReply();
    ASSERT_OK(FromProtoStatus(reply.header.status()));
    EXPECT_EQ(reply.header.call_id(), i);
    EXPECT_GT(reply.header.run_micros(), 0);
    ASSERT_EQ(reply.tensors.size(), calls_[i].replies.size());
    for (size_t r = 0; r < reply.tensors.size(); ++r) {
      EXPECT_TRUE(TensorEqual(reply.tensors[r], calls_[i].replies[r]));
    }
    EXPECT_GT(service_->rows(), rows);
    rows = service_->rows();
  }
  EXPECT_EQ(open_runs(), 0u);
}

TEST_F(ExpertServiceTest, SaysWhatIsWrongAndGoesOn) {
  Start();
  const auto outcome = [&](ExpertFrame frame) {
    router_->Send(std::move(frame));
    return router_->Outcome(7);
  };
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  const auto kPrecondition = absl::StatusCode::kFailedPrecondition;
  const auto kNotFound = absl::StatusCode::kNotFound;

  ExpertFrame frame = Frame(7);
  frame.header.set_session("small/2");
  EXPECT_THAT(outcome(frame), StatusIs(kNotFound, HasSubstr("'small/2'")));
  frame = Frame(7);
  frame.header.set_segment("other");
  EXPECT_THAT(outcome(frame), StatusIs(kNotFound, HasSubstr("'other'")));
  frame = Frame(7);
  frame.header.set_timeout_ms(0);
  EXPECT_THAT(outcome(frame), StatusIs(kInvalid, HasSubstr("timeout_ms")));
  frame = Frame(7);
  frame.header.set_step(2);
  EXPECT_THAT(outcome(frame),
              StatusIs(kPrecondition, HasSubstr("of step 1, got 2")));
  frame = Frame(7);
  frame.header.set_microbatch(1000);
  EXPECT_THAT(outcome(frame), StatusIs(kInvalid, HasSubstr("expected 0 to 2")));
  frame = Frame(7);
  frame.header.mutable_tensors(1)->set_name(frame.header.tensors(0).name());
  EXPECT_THAT(outcome(frame), StatusIs(kInvalid, HasSubstr("name of its own")));
  frame = Frame(7);
  frame.header.mutable_tensors(0)->set_name("call/v999999");
  EXPECT_THAT(outcome(frame), StatusIs(kInvalid, HasSubstr("call/")));
  frame = Frame(7);
  frame.header.mutable_tensors()->RemoveLast();
  frame.tensors.pop_back();
  EXPECT_THAT(outcome(frame), StatusIs(kInvalid, HasSubstr("inputs, got")));
  // The call needs values that no earlier call has saved.
  EXPECT_THAT(outcome(Frame(7, calls_.size() - 1)),
              StatusIs(kPrecondition, HasSubstr("has not saved")));
  // Operands of a wrong shape; group sizes that do not match the rows.
  for (int i = 0; i < frame.header.tensors_size(); ++i) {
    const Tensor& right = calls_[0].inputs[i].second;
    ExpertFrame wrong = Frame(7);
    if (right.type() == ElementType::kInt32) {
      Tensor sizes = right.Clone();
      sizes.i32()[0] += 1;
      wrong.tensors[i] = sizes;
    } else {
      wrong.tensors[i] = RandomTensor({right.dim(0), right.dim(1) + 1}, 1);
      wrong.header.mutable_tensors(i)->set_dims(1, right.dim(1) + 1);
    }
    EXPECT_THAT(outcome(wrong), StatusIs(kInvalid, HasSubstr("expected")));
  }
  // A later attempt supersedes the first, whose calls are then refused.
  frame = Frame(7);
  frame.header.set_attempt(2);
  EXPECT_OK(outcome(frame));
  EXPECT_THAT(outcome(Frame(7)),
              StatusIs(kPrecondition, HasSubstr("expected attempt 2, got 0")));
}

TEST_F(ExpertServiceTest, EndsAStreamThatBreaksTheRules) {
  Start();
  ExpertFrame frame = Frame(1);
  frame.header.set_kind(v1::ExpertFrameHeader::REPLY);
  router_->Send(frame);
  EXPECT_THAT(router_->WaitForEnd(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("expected RUN, PING or CANCEL, got 2")));

  router_ = std::make_unique<RouterStream>(*CreateChannel(server_->address()));
  const auto release = HoldThread();
  router_->Send(Frame(1));
  router_->Send(Frame(1));
  EXPECT_THAT(router_->WaitForEnd(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("call_id 1 has no reply yet")));
  release->set_value();
}

TEST_F(ExpertServiceTest, CancelsAndTimesOutWhatWaits) {
  Start();
  const auto release = HoldThread();
  router_->Send(Frame(1));
  router_->Send(Frame(2));
  WaitForWaiting(2);
  router_->Send(CancelFrame(1));
  EXPECT_THAT(router_->Outcome(1), StatusIs(absl::StatusCode::kCancelled,
                                            HasSubstr("before it began")));
  router_->Send(CancelFrame(77));  // no such call: ignored
  now_ms_ += 1000;
  release->set_value();
  EXPECT_THAT(router_->Outcome(2),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("before the segment began")));
  EXPECT_EQ(open_runs(), 0u);
}

TEST_F(ExpertServiceTest, RefusesWhatItsQueueCannotTake) {
  options_.queue.max_calls = 1;
  Start();
  const auto release = HoldThread();
  router_->Send(Frame(1));
  router_->Send(Frame(2));
  const absl::Status refused = router_->Outcome(2);
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted,
                                HasSubstr("queue is full")));
  EXPECT_TRUE(RetryDelay(refused).has_value());
  release->set_value();
  EXPECT_OK(router_->Outcome(1));
}

TEST_F(ExpertServiceTest, TranslationsAndTrainingTakeNoPlaceFromEachOther) {
  options_.queue.max_calls = 1;
  ASSERT_OK(LoadServed());
  Start();
  {  // The job's queue is full and one of its segments runs.
    const auto release = HoldThread(/*training=*/true);
    router_->Send(Frame(1));
    router_->Send(Frame(2));
    EXPECT_THAT(router_->Outcome(2),
                StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("")));
    router_->Send(ServedFrame(3));
    EXPECT_OK(router_->Outcome(3));
    release->set_value();
    EXPECT_OK(router_->Outcome(1));
  }
  const auto release = HoldThread(/*training=*/false);
  router_->Send(ServedFrame(4));
  router_->Send(ServedFrame(5));
  EXPECT_THAT(router_->Outcome(5),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("")));
  router_->Send(Frame(6, 1));
  EXPECT_OK(router_->Outcome(6));
  // A cancellation finds the call in either queue.
  router_->Send(CancelFrame(4));
  EXPECT_THAT(router_->Outcome(4),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("")));
  release->set_value();
}

// gRPC's threads would answer pings whatever the others do.
TEST_F(ExpertServiceTest, PingsTellWhetherTranslationsAreBlocked) {
  Start();
  const auto training = HoldThread(/*training=*/true);
  now_ms_ += 10'000;
  EXPECT_OK(Ping(1));
  const auto serving = HoldThread(/*training=*/false);
  now_ms_ += 9'999;
  EXPECT_OK(Ping(2));
  now_ms_ += 1;
  EXPECT_THAT(Ping(3), StatusIs(absl::StatusCode::kUnavailable,
                                HasSubstr("the same segments for 10 s")));
  serving->set_value();
  while (service_->running() > 1) std::this_thread::yield();
  EXPECT_OK(Ping(4));
  training->set_value();
}

TEST_F(ExpertServiceTest, RefusesFramesThatAreTooLong) {
  options_.stream.frame_limits.max_bytes = 64;
  Start();
  router_->Send(Frame(1));
  EXPECT_THAT(router_->WaitForEnd(),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("64")));
}

TEST_F(ExpertServiceTest, RefusesRepliesThatLeaveNoRoomForTheirHeader) {
  options_.stream.frame_limits.max_bytes = kHeaderAllowance;
  Start();
  router_->Send(Frame(1));
  EXPECT_THAT(router_->Outcome(1),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("a frame at most 65536")));
}

TEST_F(ExpertServiceTest, ABrokenStreamLeavesNothingBehind) {
  Start();
  router_->Send(Frame(1));
  ASSERT_OK(router_->Outcome(1));
  EXPECT_EQ(open_runs(), 1u);
  const auto release = HoldThread();
  ExpertFrame other = Frame(2);
  other.header.set_microbatch(1);
  router_->Send(other);
  WaitForWaiting(1);
  router_->Cancel();
  EXPECT_TRUE(absl::IsCancelled(router_->WaitForEnd()));
  WaitForWaiting(0);
  while (service_->streams() > 0) std::this_thread::yield();
  EXPECT_EQ(open_runs(), 0u);
  release->set_value();
  // A new stream starts over, with the next attempt.
  router_ = std::make_unique<RouterStream>(*CreateChannel(server_->address()));
  ExpertFrame again = Frame(3);
  again.header.set_attempt(1);
  router_->Send(again);
  EXPECT_OK(router_->Outcome(3));
  EXPECT_EQ(open_runs(), 1u);
}

TEST_F(ExpertServiceTest, StreamsThatEndDuringASumHoldUpNobody) {
  RegisterCollectiveOps();
  RegisterFakeDeviceKernels(ExpertOps());
  std::promise<void> release;
  std::atomic<bool> adding = false;
  const auto device = std::make_shared<FakeDevice>();
  device->on_add = [&, released = release.get_future().share()] {
    adding = true;
    released.wait();
  };
  SessionTable on_device(kMemory, device);
  ASSERT_OK(on_device.Load(
      "small/1", TrainingSpec(job_, roles_.segments, {0, 1, 2, 3, 4})));
  options_.queue.niceness = 1;  // so no call, however brief, runs on gRPC's
  Start(&on_device);
  for (size_t i = 0; i < 2 * calls_.size(); ++i) {
    ExpertFrame frame = Frame(i, i % calls_.size());
    frame.header.set_microbatch(static_cast<int32_t>(i / calls_.size()));
    router_->Send(std::move(frame));
    if (i + 1 < 2 * calls_.size()) ASSERT_OK(router_->Outcome(i));
  }
  while (!adding) std::this_thread::yield();
  std::deque<RouterStream> others;  // more than gRPC has threads
  const auto channel = *CreateChannel(server_->address());
  for (int i = 0; i < 20; ++i) others.emplace_back(channel).Send(Frame(1));
  WaitForWaiting(20);
  for (RouterStream& other : others) other.Cancel();
  auto pong = std::async(std::launch::async, [this] {
    WaitForWaiting(0);
    return Ping(77);
  });
  EXPECT_EQ(pong.wait_for(kLongGrace / 10), std::future_status::ready);
  release.set_value();
  EXPECT_OK(pong.get());
  EXPECT_OK(router_->Outcome(2 * calls_.size() - 1));
  others.clear();
  router_ = nullptr;
  server_ = nullptr;
  service_ = nullptr;
}

TEST_F(ExpertServiceTest, AbortedSessionsRunNothing) {
  Start();
  const auto release = HoldThread();
  router_->Send(Frame(1));
  WaitForWaiting(1);
  sessions_.Abort("small/1");
  std::thread unloader([this] { sessions_.Unload("small/1"); });
  release->set_value();
  EXPECT_THAT(router_->Outcome(1),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("has ended")));
  unloader.join();
  router_->Send(Frame(2));
  EXPECT_THAT(router_->Outcome(2),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("small/1")));
  EXPECT_EQ(sessions_.memory_bytes_used(), 0);
}

TEST_F(ExpertServiceTest, UnloadingWaitsForAcceptedCalls) {
  Start();
  const auto release = HoldThread();
  router_->Send(Frame(1));
  WaitForWaiting(1);
  std::thread unloader([this] { sessions_.Unload("small/1"); });
  while (sessions_.size() > 0) std::this_thread::yield();
  router_->Send(Frame(2));
  EXPECT_THAT(router_->Outcome(2),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("small/1")));
  release->set_value();
  EXPECT_OK(router_->Outcome(1));
  unloader.join();
}

TEST_F(ExpertServiceTest, DrainsByFinishingWhatItAccepted) {
  Start();
  const auto release = HoldThread();
  router_->Send(Frame(1));
  WaitForWaiting(1);
  std::thread drain([this] { server_->Drain(milliseconds(60'000)); });
  // Calls and pings are refused as soon as the drain begins.
  absl::Status refused;
  for (int call = 2; !absl::IsUnavailable(refused); ++call) {
    router_->Send(Frame(call));
    router_->Send(CancelFrame(call));
    refused = router_->Outcome(call);
  }
  EXPECT_EQ(Ping(0), refused);
  release->set_value();
  EXPECT_OK(router_->Outcome(1));
  EXPECT_TRUE(absl::IsUnavailable(router_->WaitForEnd()));
  drain.join();
}

TEST_F(ExpertServiceTest, StreamsThatComeLaterAreEndedToo) {
  Start();
  service_->FinishAccepted(kLongGrace);
  // The service must end this stream, or the server would wait for it as long
  // as its grace period allows.
  RouterStream late(*CreateChannel(server_->address()));
  late.Send(Frame(1));
  EXPECT_THAT(late.WaitForEnd(), StatusIs(absl::StatusCode::kUnavailable,
                                          HasSubstr("shutting down")));
}

}  // namespace
}  // namespace gshard
