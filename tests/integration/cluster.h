// A whole cluster in this process, with the code of the programs: coordinator,
// routers and expert workers on unix sockets in a temporary directory, or on
// TCP with security.

#ifndef TESTS_INTEGRATION_CLUSTER_H_
#define TESTS_INTEGRATION_CLUSTER_H_

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "expert_worker/expert_worker_process.h"
#include "proto/gshard/v1/coordinator.grpc.pb.h"
#include "proto/gshard/v1/translation.grpc.pb.h"
#include "router/router_process.h"
#include "services/base/status_macros.h"
#include "services/config/training_job_proto.h"
#include "services/coordinator/coordinator_process.h"
#include "services/rpc/client/channel.h"
#include "services/rpc/security/security.h"
#include "services/rpc/wire/status.h"
#include "tests/integration/temporary_directory.h"

namespace gshard {

// Yields until `condition` holds; false after 60 seconds.
template <typename Condition>
bool Eventually(Condition condition) {
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

// The security options of each side.
struct ClusterSecurity {
  SecurityOptions members;  // and the coordinator
  SecurityOptions client;
};

class Cluster {
 public:
  // Starts all processes with the options of `base` plus addresses and
  // security; does not wait for members to join.
  Cluster(int routers, int workers, ReduceWay reduce = ReduceWay::kCoordinator,
          std::optional<ClusterSecurity> security = std::nullopt,
          const ProcessOptions& base = {})
      : reduce_(reduce), security_(std::move(security)), base_(base) {
    StartCoordinator();
    for (int i = 0; i < workers; ++i) AddWorker(absl::StrCat("worker-", i));
    for (int i = 0; i < routers; ++i) AddRouter(absl::StrCat("router-", i));
    if (security_.has_value()) {
      client_ = *Security::CreateForClient(security_->client);
    }
    admin_ = v1::CoordinatorService::NewStub(Channel(coordinator_->address()));
  }

  // Members must leave before the coordinator does.
  ~Cluster() {
    const std::chrono::seconds grace(30);
    for (auto& router : routers_) router->Drain(grace);
    for (auto& worker : workers_) worker->Drain(grace);
    coordinator_->Drain(grace);
  }

  void AddWorker(const std::string& name,
                 std::shared_ptr<Device> device = nullptr) {
    ExpertWorkerOptions options;
    options.process = Member(name);
    options.device = std::move(device);
    workers_.push_back(std::make_unique<ExpertWorkerProcess>(options));
    Check(workers_.back()->Start());
  }
  void AddRouter(const std::string& name,
                 RendezvousFactory make_rendezvous = nullptr,
                 bool debug_calls = false,
                 std::shared_ptr<Device> device = nullptr) {
    RouterOptions options;
    options.process = Member(name);
    options.make_rendezvous = std::move(make_rendezvous);
    options.limits.debug_calls = debug_calls;
    options.device = std::move(device);
    routers_.push_back(std::make_unique<RouterProcess>(options));
    Check(routers_.back()->Start());
  }

  // Drops a member at once, without a grace period.
  void DropWorker(int i) {
    workers_[i]->Drain(std::chrono::milliseconds(0));
    workers_.erase(workers_.begin() + i);
  }
  void DropRouter(int i) {
    routers_[i]->Drain(std::chrono::milliseconds(0));
    routers_.erase(routers_.begin() + i);
  }

  // Stops the coordinator without waiting for the job and starts another from
  // its state. `meanwhile` runs while there is none.
  void RestartCoordinator(const std::function<void()>& meanwhile = nullptr) {
    coordinator_ = nullptr;
    if (meanwhile) meanwhile();
    StartCoordinator();
  }

  // Runs a job to its end, past restarts of the coordinator. Returns progress
  // lines by step; `on_line` sees each line first.
  absl::StatusOr<std::map<int64_t, v1::JobProgress>> Train(
      const TrainingJob& job,
      const std::function<void(const v1::JobProgress&)>& on_line =
          [](const v1::JobProgress&) {},
      bool resume = false) {
    v1::SubmitJobRequest submit;
    submit.set_resume(resume);
    *submit.mutable_job() = TrainingJobToProto(job);
    v1::SubmitJobResponse submitted;
    {
      grpc::ClientContext context;
      SetDeadline(context);
      RETURN_IF_ERROR(
          FromGrpcStatus(admin_->SubmitJob(&context, submit, &submitted)));
    }
    v1::WatchJobRequest watch;
    watch.set_job(submitted.job());
    std::map<int64_t, v1::JobProgress> lines;
    v1::JobProgress line;
    absl::Status end = absl::UnavailableError("not watched yet");
    while (absl::IsUnavailable(end) || absl::IsCancelled(end)) {
      grpc::ClientContext context;
      SetDeadline(context, std::chrono::minutes(4));
      auto stream = admin_->WatchJob(&context, watch);
      while (stream->Read(&line)) {
        lines[line.step()] = line;
        on_line(line);
      }
      end = FromGrpcStatus(stream->Finish());
    }
    RETURN_IF_ERROR(end);
    if (line.state() != v1::JOB_STATE_SUCCEEDED) {
      return absl::AbortedError(
          absl::StrCat(v1::JobState_Name(line.state()), ": ",
                       FromProtoStatus(line.status()).ToString()));
    }
    return lines;
  }

  // Waits for all members, then serves a checkpoint.
  absl::Status Load(const std::string& name, const std::string& checkpoint,
                    int replicas = 0,
                    v1::ModelConfig::ComputeType weights =
                        v1::ModelConfig::COMPUTE_TYPE_UNSPECIFIED) {
    WaitForMembers();
    v1::LoadModelRequest request;
    request.set_weights(weights);
    request.set_replicas(replicas);
    request.set_name(name);
    request.set_checkpoint_directory(checkpoint);
    v1::LoadModelResponse response;
    grpc::ClientContext context;
    SetDeadline(context);
    return FromGrpcStatus(admin_->LoadModel(&context, request, &response));
  }

  v1::DescribeResponse Describe() {
    v1::DescribeResponse response;
    grpc::ClientContext context;
    SetDeadline(context);
    (void)admin_->Describe(&context, {}, &response);
    return response;
  }

  void WaitForMembers() {
    const int expected = static_cast<int>(routers_.size() + workers_.size());
    ASSERT_TRUE(Eventually([&] {
      v1::DescribeResponse response;
      grpc::ClientContext context;
      SetDeadline(context);
      return admin_->Describe(&context, {}, &response).ok() &&
             response.members_size() == expected;
    }));
  }

  std::unique_ptr<v1::TranslationService::Stub> Translation(int router = 0) {
    return v1::TranslationService::NewStub(
        Channel(routers_[router]->address()));
  }

  // A channel with the client's security.
  std::shared_ptr<grpc::Channel> Channel(const std::string& address) const {
    return *CreateChannel(address, {.security = client_});
  }
  const std::string& coordinator_address() const {
    return coordinator_->address();
  }

  CoordinatorProcess& coordinator() { return *coordinator_; }
  RouterProcess& router(int i) { return *routers_[i]; }
  ExpertWorkerProcess& worker(int i) { return *workers_[i]; }

 private:
  void StartCoordinator() {
    CoordinatorProcessOptions options;
    options.process = base_;
    options.process.listen = Listen("coordinator");
    if (security_.has_value()) options.process.security = security_->members;
    options.state_directory = directory_.path() + "/state";
    options.coordinator.reduce = reduce_;
    coordinator_ = std::make_unique<CoordinatorProcess>(std::move(options));
    Check(coordinator_->Start());
  }
  std::string Listen(const std::string& name) const {
    if (security_.has_value()) return "127.0.0.1:0";
    return absl::StrCat("unix:", directory_.path(), "/", name);
  }
  ProcessOptions Member(const std::string& name) const {
    ProcessOptions options = base_;
    options.listen = Listen(name);
    if (security_.has_value()) options.security = security_->members;
    options.name = name;
    options.coordinator = coordinator_->address();
    return options;
  }
  static void Check(const absl::Status& status) {
    ASSERT_TRUE(status.ok()) << status;
  }

  const ReduceWay reduce_;
  const std::optional<ClusterSecurity> security_;
  const ProcessOptions base_;
  std::shared_ptr<const Security> client_;
  TemporaryDirectory directory_;
  std::unique_ptr<CoordinatorProcess> coordinator_;
  std::vector<std::unique_ptr<ExpertWorkerProcess>> workers_;
  std::vector<std::unique_ptr<RouterProcess>> routers_;
  std::unique_ptr<v1::CoordinatorService::Stub> admin_;
};

}  // namespace gshard

#endif  // TESTS_INTEGRATION_CLUSTER_H_
