// A whole cluster in this process: coordinator, routers and expert workers on
// unix sockets in a directory of its own, with the same code as the programs.

#ifndef TESTS_INTEGRATION_CLUSTER_H_
#define TESTS_INTEGRATION_CLUSTER_H_

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "expert_worker/expert_worker_process.h"
#include "proto/gshard/v1/coordinator.grpc.pb.h"
#include "proto/gshard/v1/translation.grpc.pb.h"
#include "router/router_process.h"
#include "services/coordinator/coordinator_process.h"
#include "services/base/status_macros.h"
#include "services/rpc/channel.h"
#include "services/rpc/status.h"
#include "tests/integration/temporary_directory.h"
#include "services/config/training_job_proto.h"

namespace gshard {

// Yields until `condition` holds, 60 seconds at most.
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

class Cluster {
 public:
  // Starts all processes; does not wait for them to join.
  Cluster(int routers, int workers) {
    CoordinatorProcessOptions coordinator;
    coordinator.listen = Socket("coordinator");
    coordinator_ =
        std::make_unique<CoordinatorProcess>(std::move(coordinator));
    Check(coordinator_->Start());
    for (int i = 0; i < workers; ++i) {
      ExpertWorkerOptions options;
      options.process = Member(absl::StrCat("worker-", i));
      workers_.push_back(std::make_unique<ExpertWorkerProcess>(options));
      Check(workers_.back()->Start());
    }
    for (int i = 0; i < routers; ++i) {
      RouterOptions options;
      options.process = Member(absl::StrCat("router-", i));
      routers_.push_back(std::make_unique<RouterProcess>(options));
      Check(routers_.back()->Start());
    }
    admin_ = v1::CoordinatorService::NewStub(
        *CreateChannel(coordinator_->address()));
  }

  // Members leave before the coordinator does.
  ~Cluster() {
    const std::chrono::seconds grace(30);
    for (auto& router : routers_) router->Drain(grace);
    for (auto& worker : workers_) worker->Drain(grace);
    coordinator_->Drain(grace);
  }

  // Runs a job to its end. Progress lines by step.
  absl::StatusOr<std::map<int64_t, v1::JobProgress>> Train(
      const TrainingJob& job) {
    v1::SubmitJobRequest submit;
    *submit.mutable_job() = TrainingJobToProto(job);
    v1::SubmitJobResponse submitted;
    {
      grpc::ClientContext context;
      SetDeadline(context);
      RETURN_IF_ERROR(FromGrpcStatus(
          admin_->SubmitJob(&context, submit, &submitted)));
    }
    v1::WatchJobRequest watch;
    watch.set_job(submitted.job());
    grpc::ClientContext context;
    SetDeadline(context, std::chrono::minutes(4));
    auto stream = admin_->WatchJob(&context, watch);
    std::map<int64_t, v1::JobProgress> lines;
    v1::JobProgress line;
    while (stream->Read(&line)) lines[line.step()] = line;
    RETURN_IF_ERROR(FromGrpcStatus(stream->Finish()));
    if (line.state() != v1::JOB_STATE_SUCCEEDED) {
      return absl::AbortedError(
          absl::StrCat(v1::JobState_Name(line.state()), ": ",
                       FromProtoStatus(line.status()).ToString()));
    }
    return lines;
  }

  // Waits until all members are there, then serves a checkpoint.
  absl::Status Load(const std::string& name, const std::string& checkpoint) {
    WaitForMembers();
    v1::LoadModelRequest request;
    request.set_name(name);
    request.set_checkpoint_directory(checkpoint);
    v1::LoadModelResponse response;
    grpc::ClientContext context;
    SetDeadline(context);
    return FromGrpcStatus(admin_->LoadModel(&context, request, &response));
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
        *CreateChannel(routers_[router]->address()));
  }

  RouterProcess& router(int i) { return *routers_[i]; }
  ExpertWorkerProcess& worker(int i) { return *workers_[i]; }

 private:
  std::string Socket(const std::string& name) const {
    return absl::StrCat("unix:", directory_.path(), "/", name);
  }
  ProcessOptions Member(const std::string& name) const {
    ProcessOptions options;
    options.listen = Socket(name);
    options.name = name;
    options.coordinator = coordinator_->address();
    return options;
  }
  static void Check(const absl::Status& status) {
    ASSERT_TRUE(status.ok()) << status;
  }

  TemporaryDirectory directory_;
  std::unique_ptr<CoordinatorProcess> coordinator_;
  std::vector<std::unique_ptr<ExpertWorkerProcess>> workers_;
  std::vector<std::unique_ptr<RouterProcess>> routers_;
  std::unique_ptr<v1::CoordinatorService::Stub> admin_;
};

}  // namespace gshard

#endif  // TESTS_INTEGRATION_CLUSTER_H_
