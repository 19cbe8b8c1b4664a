// A cluster of fake members that serves models of a trained checkpoint.

#ifndef TESTS_SERVICES_COORDINATOR_SERVED_MODELS_FIXTURE_H_
#define TESTS_SERVICES_COORDINATOR_SERVED_MODELS_FIXTURE_H_

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "services/base/check.h"
#include "services/rpc/wire/status.h"
#include "tests/services/coordinator/fake_cluster.h"

namespace gshard {

class ServedModelsTest : public ::testing::Test {
 protected:
  // Trains a checkpoint with 3 experts for all tests.
  static void SetUpTestSuite() {
    trained_ = new FakeCluster();
    trained_->AddRouter("r");
    trained_->AddWorker("w");
    const TrainingJob job = trained_->MakeJob();
    CHECK(trained_->Submit(job).ok());
    directory_ = new std::string(
        trained_->Watch(job.name).back().checkpoint_directory());
  }
  static void TearDownTestSuite() {
    delete trained_;
    delete directory_;
  }

  // Starts a router "r" and workers "w0", "w1", ... `keep`: see FakeCluster.
  void Start(int workers, int replicas, bool keep = false) {
    cluster_ = std::make_unique<FakeCluster>(
        CoordinatorOptions{.lease = absl::Seconds(1),
                           .replicas = replicas,
                           .watch_interval = absl::Milliseconds(1)},
        keep);
    router_ = &cluster_->AddRouter("r");
    for (int w = 0; w < workers; ++w) {
      workers_.push_back(&cluster_->AddWorker(absl::StrCat("w", w)));
    }
    WaitForMembers(workers + 1);
  }
  void WaitForMembers(int count) {
    while (cluster_->Describe().members_size() != count) {
      std::this_thread::yield();
    }
  }

  v1::SessionInfo Session() {
    const v1::DescribeResponse state =
        cluster_->Describe(/*include_experts=*/true);
    return state.sessions_size() == 0 ? v1::SessionInfo() : state.sessions(0);
  }
  absl::StatusOr<std::string> Rollback(const std::string& name) {
    v1::LoadModelRequest request;
    request.set_name(name);
    request.set_rollback(true);
    v1::LoadModelResponse response;
    grpc::ClientContext context;
    const absl::Status status = FromGrpcStatus(
        cluster_->stub().LoadModel(&context, request, &response));
    if (!status.ok()) return status;
    return response.session();
  }
  // The experts of each worker, by its name.
  static std::map<std::string, std::set<int32_t>> ExpertsOf(
      const v1::Placement& placement) {
    std::map<std::string, std::set<int32_t>> experts;
    for (const v1::WorkerPlacement& worker : placement.workers()) {
      for (const int32_t expert : worker.experts()) {
        // A worker holds an expert once at most.
        EXPECT_TRUE(experts[worker.name()].insert(expert).second);
      }
    }
    return experts;
  }
  template <typename Condition>
  v1::SessionInfo WaitFor(Condition condition) {
    while (true) {
      v1::SessionInfo session = Session();
      if (condition(session)) return session;
      std::this_thread::yield();
    }
  }
  // Waits until the model is ready on `workers` workers and the router has the
  // coordinator's placement.
  v1::SessionInfo WaitForReplicas(size_t workers) {
    return WaitFor([&](const v1::SessionInfo& session) {
      return session.state() == v1::SessionInfo::READY &&
             session.experts_below_replicas() == 0 &&
             ExpertsOf(session.placement()).size() == workers &&
             router_->last_load().router().placement().version() ==
                 session.placement().version();
    });
  }

  static inline FakeCluster* trained_ = nullptr;
  static inline std::string* directory_ = nullptr;
  std::unique_ptr<FakeCluster> cluster_;
  FakeMember* router_ = nullptr;
  std::vector<FakeMember*> workers_;
};

}  // namespace gshard

#endif  // TESTS_SERVICES_COORDINATOR_SERVED_MODELS_FIXTURE_H_
