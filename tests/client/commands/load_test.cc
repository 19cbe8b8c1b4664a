#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "client/commands.h"
#include "proto/gshard/v1/coordinator.grpc.pb.h"
#include "tests/client/command_run.h"
#include "tests/client/scratch_folder.h"
#include "tests/client/unix_server.h"
#include "tests/services/checkpoint/checkpoint_samples.h"
#include "tests/services/storage/scratch_directory.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A coordinator with two workers that loads any model of four experts, of which
// more than one replica is there later.
class FakeLoadCoordinator final : public v1::CoordinatorService::Service {
 public:
  const std::string& address() const { return server_.address(); }
  const v1::LoadModelRequest& loaded() const { return loaded_; }

  grpc::Status LoadModel(grpc::ServerContext*,
                         const v1::LoadModelRequest* request,
                         v1::LoadModelResponse* response) override {
    loaded_ = *request;
    response->set_session(request->name() + "@7");
    return grpc::Status::OK;
  }

  grpc::Status Describe(grpc::ServerContext*, const v1::DescribeRequest*,
                        v1::DescribeResponse* response) override {
    response->add_members()->set_role(v1::MEMBER_ROLE_ROUTER);
    for (int i = 0; i < 2; ++i) {
      response->add_members()->set_role(v1::MEMBER_ROLE_EXPERT_WORKER);
    }
    v1::SessionInfo* const session = response->add_sessions();
    session->set_session(loaded_.name() + "@7");
    session->set_replicas(loaded_.replicas());
    session->set_experts_below_replicas(loaded_.replicas() > 1 ? 4 : 0);
    v1::SessionInfo* const other = response->add_sessions();
    other->set_session("other@1");
    other->set_experts_below_replicas(8);
    return grpc::Status::OK;
  }

 private:
  v1::LoadModelRequest loaded_;
  UnixServer server_{this, v1::CoordinatorService::service_full_name()};
};

// A coordinator that serves models, and has others that wait.
class FakeUnloadCoordinator final : public v1::CoordinatorService::Service {
 public:
  FakeUnloadCoordinator(std::set<std::string> sessions,
                        std::set<std::string> waiting)
      : sessions_(std::move(sessions)), waiting_(std::move(waiting)) {}

  const std::string& address() const { return server_.address(); }
  const std::set<std::string>& sessions() const { return sessions_; }
  const std::set<std::string>& waiting() const { return waiting_; }
  // What was asked for; each is a line of the audit log.
  const std::vector<std::string>& unloads() const { return unloads_; }

  grpc::Status UnloadModel(grpc::ServerContext*,
                           const v1::UnloadModelRequest* request,
                           v1::UnloadModelResponse*) override {
    unloads_.push_back(request->session());
    if (request->session() == "of_file") {
      return {grpc::FAILED_PRECONDITION, "the models file has it"};
    }
    return waiting_.erase(request->session()) +
                       sessions_.erase(request->session()) >
                   0
               ? grpc::Status::OK
               : grpc::Status(grpc::NOT_FOUND, "no model");
  }

  grpc::Status Describe(grpc::ServerContext*, const v1::DescribeRequest*,
                        v1::DescribeResponse* response) override {
    for (const std::string& session : sessions_) {
      response->add_sessions()->set_session(session);
    }
    response->mutable_awaited_models()->Assign(waiting_.begin(),
                                               waiting_.end());
    return grpc::Status::OK;
  }

 private:
  std::vector<std::string> unloads_;
  std::set<std::string> sessions_;
  std::set<std::string> waiting_;
  UnixServer server_{this, v1::CoordinatorService::service_full_name()};
};

TEST(UnloadCommandTest, ANameIsOfWhatIsServedAndOfWhatWaits) {
  FakeUnloadCoordinator coordinator({"demo@1", "demo@2", "demos@1"},
                                    {"demo", "late", "of_file"});
  const auto unload = [&](const std::string& name) {
    return CommandRun(UnloadCommand,
                      {name, "--coordinator", coordinator.address()})
        .status;
  };
  EXPECT_OK(unload("demo@2"));
  EXPECT_THAT(coordinator.sessions(), ElementsAre("demo@1", "demos@1"));
  EXPECT_OK(unload("demo"));
  EXPECT_THAT(coordinator.sessions(), ElementsAre("demos@1"));
  EXPECT_THAT(coordinator.waiting(), ElementsAre("late", "of_file"));
  EXPECT_OK(unload("late"));
  EXPECT_THAT(coordinator.waiting(), ElementsAre("of_file"));
  EXPECT_OK(unload("demos"));
  EXPECT_THAT(coordinator.unloads(),
              ElementsAre("demo@2", "demo", "demo@1", "late", "demos@1"));
  EXPECT_THAT(unload("demo"),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("no model demo is loaded; see")));
  EXPECT_THAT(unload("demo@1"),
              StatusIs(absl::StatusCode::kNotFound, "no model"));
  EXPECT_THAT(unload("of_file"), StatusIs(absl::StatusCode::kFailedPrecondition,
                                          HasSubstr("models file")));
}

TEST(LoadCommandTest, WarnsOfReplicasThatCannotBe) {
  FakeLoadCoordinator coordinator;
  const ScratchFolder folder;
  folder.Write("manifest.json", "{}");
  const auto load = [&](const char* replicas) {
    return CommandRun(LoadCommand, {"demo", folder.path(), replicas,
                                    "--coordinator", coordinator.address()});
  };
  const CommandRun one = load("--replicas=1");
  ASSERT_OK(one.status);
  EXPECT_EQ(one.out, "demo@7 is ready\n");
  EXPECT_EQ(one.error, "");
  const CommandRun enough = load("--replicas=2");
  ASSERT_OK(enough.status);
  EXPECT_EQ(enough.error,
            "gshard: 4 experts of demo@7 have fewer than 2 replicas yet; the "
            "others are being made, see `gshard wait --full`\n");
  const CommandRun too_many = load("--replicas=3");
  ASSERT_OK(too_many.status);
  EXPECT_EQ(too_many.out, "demo@7 is ready\n");
  EXPECT_EQ(too_many.error,
            "gshard: warning: 4 experts of demo@7 have fewer than 3 replicas, "
            "with 2 workers; the others are made when more join\n");
}

TEST(LoadCommandTest, SaysWhichWeightsItWants) {
  FakeLoadCoordinator coordinator;
  const ScratchFolder folder;
  folder.Write("manifest.json", "{}");
  for (const auto& [flags, weights] :
       std::map<std::string, v1::ModelConfig::ComputeType>{
           {"--json", v1::ModelConfig::COMPUTE_TYPE_UNSPECIFIED},
           {"--weights=int8", v1::ModelConfig::INT8},
           {"--weights=float32", v1::ModelConfig::FLOAT32}}) {
    ASSERT_OK(CommandRun(LoadCommand, {"demo", folder.path(), flags,
                                       "--coordinator", coordinator.address()})
                  .status);
    EXPECT_EQ(coordinator.loaded().weights(), weights) << flags;
  }
}

// Of checkpoints with the losses 3, 2 and none.
TEST(LoadCommandTest, TakesTheNewestOrTheBest) {
  FakeLoadCoordinator coordinator;
  const ScratchDirectory scratch;
  for (const int64_t step : {1, 2, 3}) {
    ASSERT_OK_AND_ASSIGN(const auto entries,
                         WriteShards(scratch.path(), step, 1));
    Manifest manifest = ManifestOf(step, entries);
    if (step < 3) manifest.validation_loss = 4.0 - static_cast<double>(step);
    ASSERT_OK(CommitCheckpoint(scratch.path(), manifest, "pieces"));
  }
  const auto load = [&](const std::string& folder, const char* flag) {
    return CommandRun(LoadCommand, {"demo", folder, flag, "--coordinator",
                                    coordinator.address()})
        .status;
  };
  ASSERT_OK(load(scratch.path(), "--json"));
  EXPECT_EQ(coordinator.loaded().checkpoint_directory(),
            scratch / "step-00000003");
  ASSERT_OK(load(scratch.path(), "--best"));
  EXPECT_EQ(coordinator.loaded().checkpoint_directory(),
            scratch / "step-00000002");
  EXPECT_THAT(load(scratch / "step-00000003", "--best"),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("says what its validation loss was")));
}

TEST(LoadCommandTest, WrongCallsAreUsageErrors) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{
           {},
           {"demo"},
           {"demo", "/checkpoint", "--rollback"},
           {"demo", "--best", "--rollback"},
           {"demo", "--rollback", "--coordinator=nowhere"},
           {"demo", "--rollback", "--replicas=17"},
           {"demo", "/checkpoint", "--weights=int4"}}) {
    EXPECT_TRUE(IsUsageError(CommandRun(LoadCommand, arguments).status));
  }
}

}  // namespace
}  // namespace gshard
