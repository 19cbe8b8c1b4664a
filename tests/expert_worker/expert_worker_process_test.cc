// A whole expert worker between a fake coordinator and a router's stream.

#include "expert_worker/expert_worker_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "services/rpc/client/client_stream.h"
#include "services/rpc/wire/status.h"
#include "services/train/step_scale.h"
#include "tests/expert_worker/load_command.h"
#include "tests/expert_worker/training_model.h"
#include "tests/services/rpc/fake_coordinator.h"
#include "tests/testing/fake_device.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

// The router of a test: calls the only worker and waits for replies.
class WorkerCalls final : public LocalExchange {
 public:
  WorkerCalls(std::shared_ptr<grpc::Channel> channel, ExpertsOfWorkers experts,
              v1::ExpertFrameHeader header)
      : LocalExchange(
            experts, [this](int, const WorkerCall& call) { return Ask(call); }),
        channel_(std::move(channel)),
        header_(std::move(header)) {}

  void Close() {
    if (sender_ == nullptr) return;
    sender_->Finish();
    ended_.get_future().wait();
    sender_ = nullptr;
  }

 private:
  class Handler final : public StreamHandler<ExpertFrame> {
   public:
    explicit Handler(WorkerCalls* calls) : calls_(calls) {}
    void OnMessage(ExpertFrame frame) override {
      calls_->reply_.set_value(std::move(frame));
    }
    void OnEnd(const absl::Status&) override { calls_->ended_.set_value(); }

   private:
    WorkerCalls* const calls_;
  };

  absl::StatusOr<std::vector<Tensor>> Ask(const WorkerCall& call) {
    if (sender_ == nullptr) {
      sender_ = OpenStream<ExpertFrame, ExpertFrame>(
          channel_, "/gshard.v1.ExpertWorkerService/Run",
          [this](auto) { return std::make_unique<Handler>(this); });
    }
    ExpertFrame frame;
    frame.header = header_;
    frame.header.set_kind(v1::ExpertFrameHeader::RUN);
    frame.header.set_call_id(++last_call_);
    frame.header.set_segment(std::string(call.segment));
    frame.header.set_timeout_ms(60'000);
    for (const auto& [name, tensor] : call.inputs) frame.Add(name, tensor);
    reply_ = std::promise<absl::StatusOr<ExpertFrame>>();
    auto future = reply_.get_future();
    RETURN_IF_ERROR(sender_->Send(std::move(frame)));
    ASSIGN_OR_RETURN(ExpertFrame reply, future.get());
    RETURN_IF_ERROR(FromProtoStatus(reply.header.status()));
    return std::move(reply.tensors);
  }

  const std::shared_ptr<grpc::Channel> channel_;
  const v1::ExpertFrameHeader header_;
  uint64_t last_call_ = 0;
  std::shared_ptr<StreamSender<ExpertFrame>> sender_;
  std::promise<absl::StatusOr<ExpertFrame>> reply_;
  std::promise<void> ended_;
};

class ExpertWorkerProcessTest : public ::testing::Test {
 protected:
  ExpertWorkerProcessTest() : job_(SmallJob()), roles_(SplitTraining(job_)) {
    char name[] = "/tmp/gshard_worker_XXXXXX";
    directory_ = mkdtemp(name);
    coordinator_server_.AddService(&coordinator_,
                                   v1::CoordinatorService::service_full_name());
    EXPECT_OK(coordinator_server_.Start());
    ExpertWorkerOptions options;
    options.process.listen = "unix:" + directory_ + "/worker";
    options.coordinator_channel = coordinator_server_.InProcessChannel();
    worker_ = std::make_unique<ExpertWorkerProcess>(options);
    EXPECT_OK(worker_->Start());
    member_ = coordinator_.WaitForMember();
    registration_ = member_->WaitForRegistration();
    member_->Accept();
  }
  ~ExpertWorkerProcessTest() override {
    worker_.reset();
    coordinator_server_.Drain(milliseconds(0));
    std::filesystem::remove_all(directory_);
  }

  v1::Command LoadCommand() const {
    return TrainingLoad("small/1", job_, roles_.segments);
  }

  absl::Status Do(const v1::Command& command,
                  v1::CommandReply* reply = nullptr) {
    v1::CommandReply got = member_->Do(command);
    if (reply != nullptr) *reply = got;
    return FromProtoStatus(got.status());
  }

  const TrainingJob job_;
  const RolePrograms roles_;
  std::string directory_;
  FakeCoordinator coordinator_;
  ServerShell coordinator_server_{ServerOptions{}};
  std::unique_ptr<ExpertWorkerProcess> worker_;
  std::shared_ptr<JoinedMember> member_;
  v1::RegisterMember registration_;
};

TEST_F(ExpertWorkerProcessTest, RegistersItself) {
  EXPECT_EQ(registration_.role(), v1::MEMBER_ROLE_EXPERT_WORKER);
  EXPECT_EQ(registration_.address(), worker_->address());
  EXPECT_EQ(registration_.name(), "worker-worker");
  EXPECT_GT(registration_.memory_bytes(), 0);
  EXPECT_EQ(member_->WaitForHeartbeat().memory_bytes_used(), 0);
}

// A worker whose device is lost exits, so that its supervisor restarts it.
TEST_F(ExpertWorkerProcessTest, EndsIfItsDeviceIsLost) {
  auto device = std::make_shared<FakeDevice>();
  ExpertWorkerOptions options;
  options.process.listen = "unix:" + directory_ + "/other";
  options.coordinator_channel = coordinator_server_.InProcessChannel();
  options.device = device;
  ExpertWorkerProcess worker(options);
  ASSERT_OK(worker.Start());
  const auto member = coordinator_.WaitForMember();
  EXPECT_EQ(member->WaitForRegistration().device(), "cuda");
  member->Accept();
  device->lost = true;
  EXPECT_THAT(worker.Wait(), StatusIs(absl::StatusCode::kUnavailable,
                                      HasSubstr("the fake device is lost")));
}

TEST_F(ExpertWorkerProcessTest, TrainsAStepToTheBit) {
  v1::CommandReply reply;
  ASSERT_OK(Do(LoadCommand(), &reply));
  EXPECT_GT(reply.session_loaded().memory_bytes(), 0);
  EXPECT_EQ(Do(LoadCommand()).code(), absl::StatusCode::kAlreadyExists);

  ParameterStore dense(SpecsOf(job_.model, false), {},
                       MakeOptimizer(job_.optimizer));
  ASSERT_OK(dense.Load(nullptr, job_.seed));
  const MicrobatchRunner runner(job_.model, roles_.router);
  ASSERT_OK_AND_ASSIGN(const auto channel, CreateChannel(worker_->address()));
  OrderedSum sum(kMicrobatches, 0);
  int64_t target_tokens = 0;
  std::vector<std::string> names;
  for (int32_t i = 0; i < kMicrobatches; ++i) {
    v1::ExpertFrameHeader header;
    header.set_session("small/1");
    header.set_step(1);
    header.set_microbatch(i);
    WorkerCalls calls(channel, {{0, 1, 2, 3, 4}}, header);
    ASSERT_OK_AND_ASSIGN(MicrobatchResult result,
                         runner.Run(RandomBatch(1, i), job_.seed, 1, i,
                                    dense.tensors(), &calls));
    calls.Close();
    target_tokens += result.statistics.target_tokens;
    std::vector<Tensor> values;
    names.clear();
    for (auto& [name, gradient] : result.gradients) {
      names.push_back(name);
      values.push_back(std::move(gradient));
    }
    ASSERT_OK(sum.Add(i, std::move(values)));
  }
  GradientList gradients;
  std::vector<Tensor> sums = sum.Take();
  for (size_t i = 0; i < names.size(); ++i) {
    gradients.emplace_back(names[i], std::move(sums[i]));
  }

  v1::Command prepare;
  prepare.mutable_prepare_step()->set_session("small/1");
  prepare.mutable_prepare_step()->set_step(1);
  for (int i = 0; i < kMicrobatches; ++i) {
    prepare.mutable_prepare_step()->add_attempts(0);
  }
  ASSERT_OK(Do(prepare, &reply));
  ASSERT_OK_AND_ASSIGN(std::vector<SquaredNorm> norms,
                       dense.SquaredNorms(gradients));
  for (const v1::GradientNorm& norm : reply.step_prepared().norms()) {
    norms.push_back({norm.tensor(), norm.squared_norm()});
  }
  ASSERT_OK_AND_ASSIGN(
      const StepScale scale,
      ScaleStep(TotalSquaredNorm(norms), target_tokens, job_.clip_norm));
  v1::Command commit;
  commit.mutable_commit_step()->set_session("small/1");
  commit.mutable_commit_step()->set_step(1);
  commit.mutable_commit_step()->set_gradient_scale(scale.gradient_scale);
  commit.mutable_commit_step()->set_learning_rate(
      MakeSchedule(job_).LearningRate(1));
  ASSERT_OK(Do(commit));

  v1::Command write;
  write.mutable_write_checkpoint()->set_session("small/1");
  write.mutable_write_checkpoint()->set_step(1);
  write.mutable_write_checkpoint()->set_root(directory_ + "/checkpoints");
  write.mutable_write_checkpoint()->set_shard("worker-0");
  ASSERT_OK(Do(write, &reply));
  Manifest manifest;
  manifest.step = 1;
  for (const v1::TensorEntry& entry : reply.checkpoint_written().tensors()) {
    EXPECT_EQ(entry.element_type(), v1::ELEMENT_TYPE_FLOAT32);
    manifest.tensors.push_back(
        {entry.name(), entry.file(), ElementType::kFloat32,
         Dims(entry.dims().begin(), entry.dims().end()), entry.sha256()});
  }
  ASSERT_OK_AND_ASSIGN(
      const std::string path,
      CommitCheckpoint(directory_ + "/checkpoints", manifest, ""));
  ASSERT_OK_AND_ASSIGN(const auto checkpoint, CheckpointReader::Open(path));

  ASSERT_OK_AND_ASSIGN(const auto reference, LocalTrainer::Create(job_));
  ASSERT_OK(reference->Step(RandomBatch));
  for (const ParameterSpec& spec : SpecsOf(job_.model, true)) {
    for (int32_t e = 0; e < job_.model.experts; ++e) {
      ASSERT_OK_AND_ASSIGN(const Tensor tensor,
                           checkpoint->Read(ExpertTensorName(spec.name, e)));
      const Tensor expected = reference->parameters()
                                  .tensors()
                                  .at(spec.name)
                                  .Rows(e, e + 1)
                                  .Reshaped(tensor.dims());
      EXPECT_TRUE(TensorEqual(tensor, expected)) << spec.name << "/" << e;
    }
  }
  const std::string metrics = worker_->Metrics();
  for (const char* line :
       {"gshard_worker_sessions 1", "gshard_worker_step 1",
        "gshard_expert_call_duration_seconds_count{kind=\"training\","
        "stage=\"run\"}",
        "gshard_expert_calls_total{code=\"OK\"}",
        "gshard_exchange_bytes_total{direction=\"received\"}",
        "gshard_expert_rows_total"}) {
    EXPECT_THAT(metrics, HasSubstr(line));
  }

  v1::Command unload;
  unload.mutable_unload_session()->set_session("small/1");
  ASSERT_OK(Do(unload));
  ASSERT_OK(Do(unload));
  EXPECT_EQ(Do(commit).code(), absl::StatusCode::kNotFound);
}

TEST_F(ExpertWorkerProcessTest, RefusesSessionsThatItCannotTake) {
  const auto expect = [&](const v1::Command& command, absl::StatusCode code,
                          const char* why) {
    EXPECT_THAT(Do(command), StatusIs(code, HasSubstr(why)));
  };
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  v1::Command command = LoadCommand();
  command.mutable_load_session()->clear_worker();
  expect(command, kInvalid, "worker: expected");
  command = LoadCommand();
  v1::WorkerSession* worker = command.mutable_load_session()->mutable_worker();
  worker->mutable_segments(1)->set_program("program \"x\" {\n  %0 = boom()\n}");
  expect(command, kInvalid, "boom");
  *worker = LoadCommand().load_session().worker();
  worker->mutable_parameters(0)->set_element_type(v1::ELEMENT_TYPE_INT32);
  expect(command, kInvalid, "expected ELEMENT_TYPE_FLOAT32");
  *worker = LoadCommand().load_session().worker();
  worker->mutable_parameters(0)->clear_initializer();
  expect(command, kInvalid, "initializer.kind: expected 1 to 4, got 0");
  *worker = LoadCommand().load_session().worker();
  worker->clear_source();
  expect(command, kInvalid, "source: expected a checkpoint or a seed");
  *worker = LoadCommand().load_session().worker();
  worker->clear_optimizer();
  expect(command, kInvalid, "optimizer: required");
  *worker = LoadCommand().load_session().worker();
  worker->mutable_optimizer()->mutable_adam()->set_beta1(2.0);
  expect(command, kInvalid, "beta1");
  *worker = LoadCommand().load_session().worker();
  worker->add_experts(5);
  expect(command, kInvalid, "ids below 5, got 5");
  *worker = LoadCommand().load_session().worker();
  worker->mutable_source()->set_checkpoint_directory(directory_ + "/none");
  expect(command, absl::StatusCode::kNotFound, "none");
  v1::Command assign;
  assign.mutable_assign_microbatch()->set_session("small/1");
  expect(assign, absl::StatusCode::kUnimplemented, "no action");
  EXPECT_THAT(worker_->Metrics(), HasSubstr("gshard_worker_sessions 0"));
}

TEST_F(ExpertWorkerProcessTest, DropsItsSessionsWithTheMembership) {
  ASSERT_OK(Do(LoadCommand()));
  member_->End(absl::DeadlineExceededError("the lease ran out"));
  member_ = coordinator_.WaitForMember();
  member_->WaitForRegistration();
  member_->Accept();
  v1::Command commit;
  commit.mutable_commit_step()->set_session("small/1");
  EXPECT_EQ(Do(commit).code(), absl::StatusCode::kNotFound);
  ASSERT_OK(Do(LoadCommand()));
}

TEST_F(ExpertWorkerProcessTest, StaysForWhatIsNeededOfIt) {
  member_->End(absl::UnavailableError("the coordinator is replaced"));
  member_ = coordinator_.WaitForMember();
  member_->WaitForRegistration();
  member_->Accept(1, 60'000, /*answers_leaving=*/true);
  ASSERT_OK(Do(LoadCommand()));
  auto left = std::async(std::launch::async,
                         [&] { worker_->Drain(milliseconds(60'000)); });
  while (!member_->WaitForHeartbeat().leaving()) continue;
  member_->LetGo();
  // No served model needs the worker, but the job still does.
  v1::Command write;
  write.mutable_write_checkpoint()->set_session("small/1");
  write.mutable_write_checkpoint()->set_root(directory_ + "/checkpoints");
  write.mutable_write_checkpoint()->set_shard("worker-0");
  ASSERT_OK(Do(write));
  EXPECT_EQ(left.wait_for(milliseconds(0)), std::future_status::timeout);
  v1::Command unload;
  unload.mutable_unload_session()->set_session("small/1");
  member_->Send(unload);  // the process may end before its reply is sent
  left.get();
  EXPECT_OK(worker_->Wait());
  EXPECT_OK(member_->WaitForEnd());
}

TEST_F(ExpertWorkerProcessTest, EndsWhenDrainedOrRefused) {
  worker_->Drain(milliseconds(60'000));
  EXPECT_OK(worker_->Wait());
  EXPECT_OK(member_->WaitForEnd());

  ExpertWorkerOptions options;
  options.process.listen = "";
  options.process.advertise = "host:1";
  options.coordinator_channel = coordinator_server_.InProcessChannel();
  ExpertWorkerProcess other(options);
  ASSERT_OK(other.Start());
  coordinator_.WaitForMember()->End(
      absl::FailedPreconditionError("protocol version 9"));
  EXPECT_THAT(other.Wait(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                     HasSubstr("version 9")));
}

}  // namespace
}  // namespace gshard
