// TrainingSession: an interruption ends what waits for the coordinator.

#include "router/training/training_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "proto/gshard/v1/coordinator.grpc.pb.h"
#include "router/training/training_text.h"
#include "services/model/parameters.h"
#include "services/moe/graph_ops.h"
#include "services/rpc/client/channel.h"
#include "services/rpc/server/server.h"
#include "services/rpc/server/server_stream.h"
#include "services/segments/role_split.h"
#include "services/train/parameter_source.h"
#include "services/train/plan.h"
#include "tests/integration/names_job.h"
#include "tests/services/data/sample_text.h"
#include "tests/services/storage/scratch_directory.h"
#include "tests/testing/deaf_server.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::_;
using ::testing::HasSubstr;

using RawTransfers =
    v1::CoordinatorService::WithRawCallbackMethod_PushGradients<
        v1::CoordinatorService::WithRawCallbackMethod_PullParameters<
            v1::CoordinatorService::Service>>;

// Gives parameters to all, and answers the one push when told to.
class SlowCoordinator final : public RawTransfers {
 public:
  explicit SlowCoordinator(NamedTensors parameters)
      : parameters_(std::move(parameters)) {}

  grpc::ServerReadReactor<grpc::ByteBuffer>* PushGradients(
      grpc::CallbackServerContext* context,
      grpc::ByteBuffer* response) override {
    return ServeUpload<TensorFrame, v1::PushGradientsResponse>(
        context, response, std::make_unique<Push>(this));
  }
  grpc::ServerWriteReactor<grpc::ByteBuffer>* PullParameters(
      grpc::CallbackServerContext*, const grpc::ByteBuffer*) override {
    auto frames = std::make_shared<std::vector<TensorFrame>>(
        SplitTensors(parameters_, {}));
    return ServeDownload<TensorFrame>(
        [frames, next = size_t{0}]() mutable
        -> absl::StatusOr<std::optional<TensorFrame>> {
          if (next == frames->size()) return std::nullopt;
          return std::move((*frames)[next++]);
        });
  }

  void WaitUntilPushed() { pushed_.get_future().wait(); }
  void Answer() { done_(v1::PushGradientsResponse()); }

 private:
  class Push final
      : public UploadHandler<TensorFrame, v1::PushGradientsResponse> {
   public:
    explicit Push(SlowCoordinator* service) : service_(service) {}
    absl::Status OnMessage(TensorFrame) override { return absl::OkStatus(); }
    void OnComplete(Done done) override {
      service_->done_ = std::move(done);
      service_->pushed_.set_value();
    }

   private:
    SlowCoordinator* const service_;
  };

  const NamedTensors parameters_;
  std::function<void(absl::StatusOr<v1::PushGradientsResponse>)> done_;
  std::promise<void> pushed_;
};

// A job without experts, whose dense parameters are the coordinator's.
class TrainingSessionTest : public ::testing::Test {
 protected:
  TrainingSessionTest() {
    RegisterMoeOps();
    RegisterShardingOps();
    job_.model.experts = 0;
    Spill(scratch_ / "source.model",
          std::string(SampleTokenizers().source->model_bytes()));
  }

  std::unique_ptr<TrainingSession> Open(
      std::shared_ptr<grpc::Channel> coordinator) {
    auto session =
        TrainingSession::Create({.session = "dense/1",
                                 .job = job_,
                                 .tokenizer_directory = scratch_.path(),
                                 .workers = std::make_shared<ReplicaGroup>(),
                                 .dense = nullptr},
                                std::move(coordinator));
    EXPECT_OK(session);
    return *std::move(session);
  }

  // Begins the first microbatch.
  static std::future<absl::Status> Run(TrainingSession& session) {
    v1::AssignMicrobatch first;
    first.set_session("dense/1");
    first.set_step(1);
    first.set_timeout_ms(60'000);
    return std::async(std::launch::async, [&session, first] {
      return session.RunMicrobatch(first).status();
    });
  }

  const ScratchDirectory scratch_;
  TrainingJob job_ = NamesJob(scratch_ / "checkpoints");
};

// `gshard plan` says what it holds, besides text and activations.
TEST_F(TrainingSessionTest, TakesTheMemoryOfThePlan) {
  for (const ComputeType type :
       {ComputeType::kFloat32, ComputeType::kBFloat16}) {
    job_.model.compute_type = type;
    ASSERT_OK_AND_ASSIGN(const Plan plan, MakePlan(job_.model, {}));
    ASSERT_OK_AND_ASSIGN(const auto text,
                         TrainingText::Open(job_, scratch_.path(), 0, {}));
    EXPECT_EQ(Open(*CreateChannel("unix:/none"))->memory_bytes(),
              text->memory_bytes() + plan.router_training.weights +
                  plan.router_training.gradients +
                  plan.router_training.optimizer_state);
  }
}

TEST_F(TrainingSessionTest, AnInterruptionEndsThePullOfParameters) {
  DeafServer server;
  ASSERT_OK_AND_ASSIGN(const auto channel, CreateChannel(server.address()));
  const auto session = Open(channel);
  std::future<absl::Status> run = Run(*session);
  server.AwaitBytes(1);
  session->Interrupt();
  EXPECT_THAT(run.get(), StatusIs(absl::StatusCode::kCancelled, _));
}

TEST_F(TrainingSessionTest, AnInterruptionEndsThePushOfGradients) {
  ASSERT_OK_AND_ASSIGN(
      const TensorMap parameters,
      ReadParameters(ModelParameters(job_.model), {}, nullptr, job_.seed));
  SlowCoordinator coordinator({parameters.begin(), parameters.end()});
  ServerShell server({.address = "unix:" + (scratch_ / "coordinator")});
  server.AddService(&coordinator, v1::CoordinatorService::service_full_name());
  ASSERT_OK(server.Start());
  ASSERT_OK_AND_ASSIGN(const auto channel, CreateChannel(server.address()));
  const auto session = Open(channel);
  std::future<absl::Status> run = Run(*session);
  coordinator.WaitUntilPushed();
  session->Interrupt();
  EXPECT_THAT(run.get(), StatusIs(absl::StatusCode::kCancelled, _));
  coordinator.Answer();
  server.Drain(std::chrono::milliseconds(0));
}

// A new attempt at a late epoch plans the earlier ones while it loads, which
// can be stopped, not in its first microbatch.
TEST_F(TrainingSessionTest, ALoadAtALateEpochCanBeStopped) {
  const auto create = [&](int64_t done_steps, std::stop_token stop) {
    return TrainingSession::Create({.session = "dense/1",
                                    .job = job_,
                                    .tokenizer_directory = scratch_.path(),
                                    .done_steps = done_steps,
                                    .workers = std::make_shared<ReplicaGroup>(),
                                    .dense = nullptr},
                                   *CreateChannel("unix:/none"), /*metrics=*/{},
                                   std::move(stop))
        .status();
  };
  ASSERT_OK(create(1000, {}));  // leaves an index of the text
  std::stop_source stop;
  stop.request_stop();
  EXPECT_THAT(create(1000, stop.get_token()),
              StatusIs(absl::StatusCode::kCancelled,
                       HasSubstr("the epochs before step 1000")));
}

}  // namespace
}  // namespace gshard
