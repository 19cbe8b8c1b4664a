#include "services/coordinator/coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/coordinator/coordinator_process.h"
#include "services/coordinator/preparation/job_checkpoint.h"
#include "services/rpc/client/channel.h"
#include "services/rpc/client/tensor_transfer.h"
#include "services/rpc/wire/status.h"
#include "tests/services/coordinator/fake_cluster.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// Trains `job` to its end and returns the checkpoint.
std::string Train(FakeCluster& cluster, const TrainingJob& job) {
  CHECK(cluster.Submit(job).ok());
  const v1::JobProgress last = cluster.Watch(job.name).back();
  EXPECT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
  return last.checkpoint_directory();
}

// Waits until exactly `count` members are there.
void WaitForMembers(FakeCluster& cluster, int count) {
  while (cluster.Describe().members_size() != count) std::this_thread::yield();
}

TEST(CoordinatorTest, RefusesBadJobs) {
  FakeCluster cluster;
  struct Case {
    std::function<void(TrainingJob&)> change;
    std::string message;
  };
  const std::vector<Case> cases = {
      {[](auto& job) { job.name = ""; }, "name"},
      {[](auto& job) { job.name = "a/b"; }, "name"},
      {[](auto& job) { job.steps = 0; }, "steps: expected 1 to"},
      {[](auto& job) { job.seed = -1; }, "seed"},
      {[](auto& job) { job.model.experts = 4096; }, "model.experts"},
      {[](auto& job) { job.microbatches_per_step = 0; },
       "microbatches_per_step"},
      {[](auto& job) { job.clip_norm = -1; }, "clip_norm"},
      {[](auto& job) { job.checkpoint.directory = ""; },
       "checkpoint.directory"},
      {[](auto& job) { job.serve_as = "not a name"; }, "serve_as"},
      {[](auto& job) { job.data.train_path = ""; }, "data.train_path"},
      {[](auto& job) { job.data.train_path = "/nonexistent/train.tsv"; },
       "data.train_path: expected a readable file: "},
      {[](auto& job) { job.data.source_tokenizer_path = "/nonexistent"; },
       "data.source_tokenizer_path"},
      {[](auto& job) { job.data.target_tokenizer_path = "/etc/passwd"; },
       "data.target_tokenizer_path"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.message);
    TrainingJob job = cluster.MakeJob();
    c.change(job);
    EXPECT_THAT(
        cluster.Submit(job),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(c.message)));
  }
  v1::SubmitJobResponse response;
  grpc::ClientContext context;
  EXPECT_EQ(cluster.stub()
                .SubmitJob(&context, v1::SubmitJobRequest(), &response)
                .error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(cluster.Describe().jobs_size(), 0);
}

TEST(CoordinatorTest, DataThatIsNoneFailsTheJob) {
  FakeCluster cluster;
  TrainingJob job = cluster.MakeJob();
  job.data.source_tokenizer_path.clear();
  Spill(job.data.train_path, "no columns\n");
  ASSERT_OK(cluster.Submit(job));
  v1::JobProgress last = cluster.Watch("demo").back();
  EXPECT_EQ(last.state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(last.status().code(),
            static_cast<int>(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(last.status().message(), HasSubstr("train.tsv"));
  job.name = "other";
  job.data.source_tokenizer_path = job.data.train_path;
  ASSERT_OK(cluster.Submit(job));
  last = cluster.Watch("other").back();
  EXPECT_EQ(last.status().code(),
            static_cast<int>(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(last.status().message(), HasSubstr("source tokenizer"));
}

TEST(CoordinatorTest, RunsOneJobAtATimeAndKeepsCheckpoints) {
  FakeCluster cluster;
  const TrainingJob job = cluster.MakeJob();
  ASSERT_OK(cluster.Submit(job));  // waits for members
  EXPECT_THAT(
      cluster.Submit(job, /*resume=*/true),
      StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("is not over")));
  cluster.AddRouter("r");
  cluster.AddWorker("w");
  EXPECT_EQ(cluster.Watch("demo").back().state(), v1::JOB_STATE_SUCCEEDED);
  EXPECT_THAT(cluster.Submit(job),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("name")));
  TrainingJob same_folder = cluster.MakeJob("other");
  same_folder.checkpoint.directory = job.checkpoint.directory;
  EXPECT_THAT(cluster.Submit(same_folder),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       HasSubstr("checkpoint.directory")));
  // Resuming needs more steps, and the seed and tensors of the checkpoint.
  EXPECT_THAT(cluster.Submit(job, /*resume=*/true),
              StatusIs(absl::StatusCode::kOutOfRange,
                       HasSubstr("steps: expected more than the 3")));
  TrainingJob changed = job;
  changed.steps = 4;
  changed.seed = 2;
  EXPECT_THAT(cluster.Submit(changed, /*resume=*/true),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("seed: expected 1")));
  changed.seed = 1;
  changed.model.heads = 1;
  changed.model.head_width = 8;
  EXPECT_THAT(cluster.Submit(changed, /*resume=*/true),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("model: expected 'heads: 2'"),
                             HasSubstr("got 'heads: 1'"))));
  changed.model = job.model;
  changed.optimizer = AdamConfig();
  EXPECT_THAT(
      cluster.Submit(changed, /*resume=*/true),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("optimizer/")));
  changed.optimizer = job.optimizer;
  // What no tensor follows from may change.
  changed.model.name = "other";
  changed.model.max_positions = 512;
  changed.model.compute_type = ComputeType::kBFloat16;
  changed.model.wire_type = ComputeType::kBFloat16;
  changed.model.dropout.residual = 0.3;
  changed.model.gate.balance_loss_coefficient = 0.05;
  changed.model.gate.training_capacity_factor = 2;
  changed.data.source_tokenizer_path = job.data.train_path;
  ASSERT_OK(cluster.Submit(changed, /*resume=*/true));
  EXPECT_THAT(cluster.Watch("demo").back().status().message(),
              HasSubstr("is not the tokenizer of the checkpoint"));
  changed.data = job.data;
  ASSERT_OK(cluster.Submit(changed, /*resume=*/true));
  const v1::JobProgress last = cluster.Watch("demo").back();
  EXPECT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
  EXPECT_EQ(last.step(), 4);
  // The job is listed once, as it was last submitted.
  ASSERT_EQ(cluster.Describe().jobs_size(), 1);
  EXPECT_EQ(cluster.Describe().jobs(0).step(), 4);
}

TEST(CoordinatorTest, ServesACheckpoint) {
  FakeCluster cluster;
  FakeMember& router = cluster.AddRouter("r");
  FakeMember& worker = cluster.AddWorker("w0");
  cluster.AddWorker("w1");
  WaitForMembers(cluster, 3);
  const std::string directory = Train(cluster, cluster.MakeJob());

  ASSERT_OK_AND_ASSIGN(const std::string session,
                       cluster.LoadModel("translator", "", directory));
  EXPECT_EQ(session, "translator@3");
  const v1::LoadSession load = worker.last_load();
  EXPECT_FALSE(load.training());
  EXPECT_EQ(load.worker().source().checkpoint_directory(), directory);
  EXPECT_THAT(load.worker().experts(), ElementsAre(0, 1));
  EXPECT_EQ(load.worker().total_experts(), 3);
  EXPECT_EQ(load.worker().parameters_size(), 4);
  EXPECT_THAT(load.worker().segments(0).program(), HasSubstr("program \""));

  v1::DescribeResponse state = cluster.Describe(/*include_experts=*/true);
  ASSERT_EQ(state.members_size(), 3);
  EXPECT_EQ(state.members(0).name(), "r");
  EXPECT_EQ(state.members(0).role(), v1::MEMBER_ROLE_ROUTER);
  EXPECT_EQ(state.members(1).address(), "unix:/tmp/w0");
  ASSERT_EQ(state.sessions_size(), 1);
  EXPECT_EQ(state.sessions(0).state(), v1::SessionInfo::READY);
  EXPECT_THAT(state.sessions(0).routers(), ElementsAre("r"));
  EXPECT_THAT(state.sessions(0).expert_counts(), ElementsAre(2, 1));
  EXPECT_THAT(state.sessions(0).placement().workers(1).experts(),
              ElementsAre(2));
  ASSERT_EQ(state.jobs_size(), 1);
  EXPECT_EQ(state.jobs(0).step(), 3);
  state = cluster.Describe();
  EXPECT_EQ(state.sessions(0).placement().workers(1).experts_size(), 0);

  // Loading the same version again does nothing; another version replaces it.
  router.WaitFor("abort demo/1");
  const size_t before = router.commands().size();
  EXPECT_OK(cluster.LoadModel("translator", "3", directory));
  EXPECT_EQ(router.commands().size(), before);
  ASSERT_OK(cluster.LoadModel("translator", "b", directory));
  ASSERT_OK(cluster.LoadModel("other", "b", directory));
  state = cluster.Describe();
  ASSERT_EQ(state.sessions_size(), 2);
  EXPECT_EQ(state.sessions(0).session(), "other@b");
  EXPECT_EQ(state.sessions(1).session(), "translator@b");
  router.WaitFor("unload translator@3");

  EXPECT_OK(cluster.UnloadModel("other@b"));
  EXPECT_THAT(cluster.UnloadModel("other@b"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("other@b")));
}

TEST(CoordinatorTest, RefusesWhatCannotBeServed) {
  FakeCluster cluster;
  EXPECT_THAT(cluster.LoadModel("a b", "", "/x"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("name")));
  EXPECT_THAT(
      cluster.LoadModel("m", "1/2", "/x"),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("version")));
  EXPECT_THAT(cluster.LoadModel("m", "", ""),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("checkpoint_directory")));
  EXPECT_THAT(cluster.LoadModel("m", "", "/nonexistent"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("checkpoint")));

  FakeMember& router = cluster.AddRouter("r");
  FakeMember& worker = cluster.AddWorker("w");
  const std::string directory = Train(cluster, cluster.MakeJob());
  router.Leave();
  WaitForMembers(cluster, 1);
  EXPECT_THAT(
      cluster.LoadModel("m", "", directory),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no router")));
  cluster.AddRouter(
      "bad", [](const v1::Command& command) -> std::optional<v1::CommandReply> {
        if (!command.has_load_session()) return std::nullopt;
        return ReplyWith(absl::DataLossError("tensor 'x' is damaged"));
      });
  WaitForMembers(cluster, 2);
  EXPECT_THAT(cluster.LoadModel("m", "", directory),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("router 'bad': tensor 'x' is damaged")));
  EXPECT_EQ(cluster.Describe().sessions_size(), 0);
  worker.WaitFor("unload m@3");
  worker.Leave();
  WaitForMembers(cluster, 1);
  EXPECT_THAT(cluster.LoadModel("m", "", directory),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("no expert worker")));
  Spill(directory + "/source.model", "x");
  Poke(directory + "/manifest.json", 100, '~');
  EXPECT_THAT(cluster.LoadModel("m", "", directory),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("manifest")));
}

TEST(CoordinatorTest, ServingFollowsTheMembers) {
  FakeCluster cluster;
  FakeMember& worker = cluster.AddWorker("w0");
  cluster.AddRouter("r0");
  WaitForMembers(cluster, 2);
  const std::string directory = Train(cluster, cluster.MakeJob());
  ASSERT_OK(cluster.LoadModel("m", "1", directory));
  // A router that joins loads the model.
  cluster.AddRouter("r1").WaitFor("load m@1");
  // Losing the only worker breaks the session; another worker repairs it.
  worker.Leave();
  while (cluster.Describe().sessions(0).state() != v1::SessionInfo::BROKEN) {
    std::this_thread::yield();
  }
  FakeMember& other = cluster.AddWorker("w1");
  while (cluster.Describe().sessions(0).state() != v1::SessionInfo::READY) {
    std::this_thread::yield();
  }
  EXPECT_THAT(other.last_load().worker().experts(), ElementsAre(0, 1, 2));
}

TEST(CoordinatorTest, ServesModelsFromTheStart) {
  std::string directory;
  ScratchDirectory keep;
  {
    FakeCluster cluster;
    cluster.AddRouter("r");
    cluster.AddWorker("w");
    TrainingJob job = cluster.MakeJob();
    job.checkpoint.directory = keep / "checkpoints";
    directory = Train(cluster, job);
  }
  FakeCluster cluster({.models = {{"m", directory}}, .min_workers = 2});
  cluster.AddRouter("r");
  cluster.AddWorker("w0");
  WaitForMembers(cluster, 2);
  EXPECT_EQ(cluster.Describe().sessions_size(), 0);
  cluster.AddWorker("w1");
  const auto is_ready = [&] {
    const v1::DescribeResponse state = cluster.Describe();
    return state.sessions_size() == 1 &&
           state.sessions(0).state() == v1::SessionInfo::READY;
  };
  while (!is_ready()) std::this_thread::yield();
  EXPECT_THAT(cluster.Describe().sessions(0).expert_counts(),
              ElementsAre(2, 1));
}

TEST(CoordinatorTest, TheTensorMethodsCheckWhatComes) {
  FakeCluster cluster;
  const auto push = [&](const std::string& session) {
    v1::TensorFrameHeader header;
    header.set_session(session);
    header.set_step(1);
    return PushGradients(cluster.channel(), header, {},
                         std::chrono::minutes(1));
  };
  EXPECT_THAT(push("demo/1"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("'demo/1'")));
  TrainingJob job = cluster.MakeJob();
  std::vector<absl::Status> outcomes;
  std::promise<void> done;
  cluster.AddRouter(
      "r", [&](const v1::Command& command) -> std::optional<v1::CommandReply> {
        if (!command.has_assign_microbatch() || !outcomes.empty()) {
          return std::nullopt;
        }
        v1::TensorFrameHeader header;
        header.set_session("demo/1");
        const auto push = [&](int64_t step, int microbatch, int attempt) {
          header.set_step(step);
          header.set_microbatch(microbatch);
          header.set_attempt(attempt);
          outcomes.push_back(PushGradients(cluster.channel(), header, {},
                                           std::chrono::minutes(1)));
        };
        push(2, 0, 0);
        push(1, 4, 0);
        push(1, 0, 1);
        push(1, 0, 0);
        v1::PullParametersRequest pull;
        pull.set_session("demo/1");
        pull.set_version(7);
        outcomes.push_back(
            PullParameters(cluster.channel(), pull, {}, std::chrono::minutes(1))
                .status());
        done.set_value();
        return std::nullopt;
      });
  cluster.AddWorker("w");
  ASSERT_OK(cluster.Submit(job));
  done.get_future().wait();
  using absl::StatusCode;
  EXPECT_THAT(
      outcomes,
      ElementsAre(
          StatusIs(StatusCode::kFailedPrecondition, HasSubstr("of step 1")),
          StatusIs(StatusCode::kInvalidArgument, HasSubstr("got microbatch 4")),
          StatusIs(StatusCode::kFailedPrecondition, HasSubstr("attempt 0")),
          StatusIs(StatusCode::kInvalidArgument, HasSubstr("is missing")),
          StatusIs(StatusCode::kFailedPrecondition,
                   HasSubstr("expected version 0, got 7"))));
  EXPECT_EQ(cluster.Watch("demo").back().state(), v1::JOB_STATE_SUCCEEDED);
}

TEST(CoordinatorTest, AStreamThatBreaksTheRulesEnds) {
  FakeCluster cluster;
  const auto join = [&](const std::vector<v1::JoinRequest>& requests) {
    grpc::ClientContext context;
    SetDeadline(context, std::chrono::minutes(1));
    const auto stream = cluster.stub().Join(&context);
    for (const v1::JoinRequest& request : requests) stream->Write(request);
    v1::JoinResponse response;
    while (stream->Read(&response)) {
    }
    return FromGrpcStatus(stream->Finish());
  };
  v1::JoinRequest heartbeat, member, reply, other_version;
  heartbeat.mutable_heartbeat();
  member.mutable_register_()->set_name("x");
  member.mutable_register_()->set_role(v1::MEMBER_ROLE_ROUTER);
  member.mutable_register_()->set_address("localhost:1");
  member.mutable_register_()->set_protocol_version(1);
  other_version = member;
  other_version.mutable_register_()->set_protocol_version(9);
  reply.mutable_reply()->set_command_id(1);
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(join({heartbeat}), StatusIs(kInvalid, HasSubstr("'register'")));
  EXPECT_THAT(join({v1::JoinRequest()}), StatusIs(kInvalid, HasSubstr("")));
  EXPECT_THAT(join({member, member}),
              StatusIs(kInvalid, HasSubstr("'register'")));
  EXPECT_THAT(join({member, reply}), StatusIs(kInvalid, HasSubstr("command")));
  EXPECT_THAT(join({other_version}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("coordinator speaks, got 9")));
  EXPECT_EQ(cluster.Describe().members_size(), 0);
}

TEST(CoordinatorTest, WatchingNoJobIsAnError) {
  FakeCluster cluster;
  grpc::ClientContext context;
  v1::WatchJobRequest request;
  request.set_job("nobody");
  const auto reader = cluster.stub().WatchJob(&context, request);
  v1::JobProgress progress;
  EXPECT_FALSE(reader->Read(&progress));
  EXPECT_THAT(FromGrpcStatus(reader->Finish()),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("'nobody'")));
}

TEST(CoordinatorProcessTest, IsStoppedBeforeItStarts) {
  ScratchDirectory scratch;
  CoordinatorProcess process({.process = {.listen = "unix:" + scratch / "s"}});
  process.Drain(std::chrono::milliseconds(0));
  EXPECT_OK(process.Start());
  EXPECT_OK(process.Wait());
}

TEST(CoordinatorProcessTest, StartsTellsAndDrains) {
  ScratchDirectory scratch;
  CoordinatorProcess process(
      {.process = {.listen = "unix:" + scratch / "socket",
                   .metrics_address = "127.0.0.1:0"},
       .per_expert_metrics = true});
  ASSERT_OK(process.Start());
  EXPECT_EQ(process.address(), "unix:" + scratch / "socket");
  EXPECT_THAT(process.metrics_address(), Not(HasSubstr(":0")));
  process.Drain(std::chrono::milliseconds(0));
  EXPECT_OK(process.Wait());
}

TEST(CoordinatorProcessTest, WritesWhereItServes) {
  ScratchDirectory scratch;
  CoordinatorProcess process({.process = {.listen = "127.0.0.1:0"},
                              .address_file = scratch / "address"});
  ASSERT_OK(process.Start());
  std::ifstream file(scratch / "address");
  std::string address;
  std::getline(file, address);
  EXPECT_EQ(address, process.address());
  EXPECT_THAT(address, Not(HasSubstr(":0")));
}

TEST(CoordinatorProcessTest, TheFlags) {
  EXPECT_EQ(RunCoordinator({"--model=m"}), 2);
  EXPECT_EQ(RunCoordinator({"--nonsense"}), 2);
  EXPECT_EQ(RunCoordinator({"--help"}), 0);
  EXPECT_EQ(RunCoordinator({"--version"}), 0);
}

}  // namespace
}  // namespace gshard
