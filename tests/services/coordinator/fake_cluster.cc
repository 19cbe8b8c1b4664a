#include "tests/services/coordinator/fake_cluster.h"

#include <utility>

#include "services/base/check.h"
#include "services/base/status_macros.h"
#include "services/config/training_job_proto.h"
#include "services/rpc/client/channel.h"
#include "services/rpc/wire/status.h"

namespace gshard {
namespace {

constexpr std::chrono::milliseconds kLong{60'000};
}  // namespace

FakeCluster::FakeCluster(CoordinatorOptions options, bool keep)
    : options_(std::move(options)), keep_(keep) {
  options_.retry_delay = absl::ZeroDuration();
  StartCoordinator();
  channel_ = *CreateChannel(server_->address());
}

void FakeCluster::StartCoordinator() {
  coordinator_ = std::make_unique<Coordinator>(options_);
  if (keep_) {
    const absl::Status restored = coordinator_->Restore(scratch / "state");
    CHECK(restored.ok());
  }
  coordinator_->WatchModelsFile();
  service_ = std::make_unique<CoordinatorServiceImpl>(coordinator_.get(),
                                                      FrameLimits());
  server_ = std::make_unique<ServerShell>(
      ServerOptions{.address = "unix:" + directory_.path() + "/server"});
  server_->AddService(service_.get(),
                      v1::CoordinatorService::service_full_name());
  server_->OnDrain([this] { coordinator_->Drain(absl::ZeroDuration()); });
  CHECK(server_->Start().ok());
  // A separate connection, so that no test call uses the one to the previous
  // coordinator.
  stub_ = v1::CoordinatorService::NewStub(*CreateChannel(server_->address()));
}

void FakeCluster::RestartCoordinator(const std::function<void()>& meanwhile) {
  coordinator_->Shutdown();
  server_->Drain(std::chrono::milliseconds(0));
  server_ = nullptr;
  service_ = nullptr;
  coordinator_ = nullptr;
  if (meanwhile) meanwhile();
  StartCoordinator();
}

FakeCluster::~FakeCluster() {
  for (const auto& member : members_) member->Leave();
  server_->Drain(std::chrono::milliseconds(0));
  coordinator_->Shutdown();
}

FakeMember& FakeCluster::AddRouter(const std::string& name,
                                   FakeMember::Intercept intercept) {
  return *members_.emplace_back(std::make_unique<FakeMember>(
      channel_, v1::MEMBER_ROLE_ROUTER, name, std::move(intercept)));
}

FakeMember& FakeCluster::AddWorker(const std::string& name,
                                   FakeMember::Intercept intercept,
                                   int64_t memory_bytes) {
  return *members_.emplace_back(
      std::make_unique<FakeMember>(channel_, v1::MEMBER_ROLE_EXPERT_WORKER,
                                   name, std::move(intercept), memory_bytes));
}

absl::Status FakeCluster::Submit(const TrainingJob& job, bool resume) {
  grpc::ClientContext context;
  SetDeadline(context, kLong);
  v1::SubmitJobRequest request;
  *request.mutable_job() = TrainingJobToProto(job);
  request.set_resume(resume);
  v1::SubmitJobResponse response;
  return FromGrpcStatus(stub_->SubmitJob(&context, request, &response));
}

absl::Status FakeCluster::Cancel(const std::string& job) {
  grpc::ClientContext context;
  SetDeadline(context, kLong);
  v1::CancelJobRequest request;
  request.set_job(job);
  v1::CancelJobResponse response;
  return FromGrpcStatus(stub_->CancelJob(&context, request, &response));
}

absl::StatusOr<std::string> FakeCluster::LoadModel(
    const std::string& name, const std::string& version,
    const std::string& directory, int32_t replicas,
    v1::ModelConfig::ComputeType weights) {
  grpc::ClientContext context;
  SetDeadline(context, kLong);
  v1::LoadModelRequest request;
  request.set_weights(weights);
  request.set_name(name);
  request.set_version(version);
  request.set_checkpoint_directory(directory);
  request.set_replicas(replicas);
  v1::LoadModelResponse response;
  RETURN_IF_ERROR(
      FromGrpcStatus(stub_->LoadModel(&context, request, &response)));
  return response.session();
}

absl::Status FakeCluster::UnloadModel(const std::string& session) {
  grpc::ClientContext context;
  SetDeadline(context, kLong);
  v1::UnloadModelRequest request;
  request.set_session(session);
  v1::UnloadModelResponse response;
  return FromGrpcStatus(stub_->UnloadModel(&context, request, &response));
}

v1::DescribeResponse FakeCluster::Describe(bool include_experts) {
  grpc::ClientContext context;
  SetDeadline(context, kLong);
  v1::DescribeRequest request;
  request.set_include_experts(include_experts);
  v1::DescribeResponse response;
  CHECK(stub_->Describe(&context, request, &response).ok());
  return response;
}

std::vector<v1::JobProgress> FakeCluster::Watch(
    const std::string& job,
    const std::function<bool(const v1::JobProgress&)>& enough) {
  grpc::ClientContext context;
  SetDeadline(context, kLong);
  v1::WatchJobRequest request;
  request.set_job(job);
  const auto reader = stub_->WatchJob(&context, request);
  std::vector<v1::JobProgress> lines;
  v1::JobProgress progress;
  while (reader->Read(&progress)) {
    lines.push_back(progress);
    if (enough && enough(progress)) {
      context.TryCancel();
      break;
    }
  }
  (void)reader->Finish();
  return lines;
}

}  // namespace gshard
