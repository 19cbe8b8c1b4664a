// RouterSessions: loads that a router refuses, loads that are cancelled, and
// shards that are written.

#include "router/router_sessions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/checkpoint/checkpoint.h"
#include "services/coordinator/membership/session_plan.h"
#include "services/coordinator/training/dense_reduction.h"
#include "services/moe/graph_ops.h"
#include "services/rpc/client/channel.h"
#include "services/rpc/wire/status.h"
#include "services/segments/call_segment.h"
#include "tests/integration/names_job.h"
#include "tests/router/fake_worker.h"
#include "tests/services/collectives/local_rendezvous.h"
#include "tests/services/data/sample_text.h"
#include "tests/services/storage/disk_faults.h"
#include "tests/services/storage/scratch_directory.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Writes a checkpoint with what a router reads of it, and returns its path.
absl::StatusOr<std::string> WriteDense(const ModelConfig& model,
                                       const std::string& root) {
  std::vector<TensorSpec> specs;
  for (const ParameterSpec& spec : ParametersOf(model, /*per_expert=*/false)) {
    specs.push_back({spec.name, ElementType::kFloat32, spec.dims});
  }
  ASSIGN_OR_RETURN(const auto writer,
                   CheckpointWriter::Create(root, 1, "router", specs));
  for (const TensorSpec& spec : specs) {
    RETURN_IF_ERROR(
        writer->Write(spec.name, Tensor::Zeros(spec.type, spec.dims)));
  }
  Manifest manifest;
  manifest.step = 1;
  manifest.tokenizer_file = "tokenizer.model";
  ASSIGN_OR_RETURN(manifest.tensors, writer->Finish());
  return CommitCheckpoint(
      root, manifest, std::string(SampleTokenizers().source->model_bytes()));
}

class RouterSessionsTest : public ::testing::Test {
 protected:
  RouterSessionsTest() {
    RegisterMoeOps();
    RegisterShardingOps();
  }

  absl::Status Load(const v1::LoadSession& load) {
    v1::Command command;
    *command.mutable_load_session() = load;
    return FromProtoStatus(sessions_.Handle(command).status());
  }
  absl::Status Unload(const std::string& session) {
    v1::Command command;
    command.mutable_unload_session()->set_session(session);
    return FromProtoStatus(sessions_.Handle(command).status());
  }
  // Expects the router to accept the segments_key of `load`, and to refuse
  // another key, as from a release that splits the model differently.
  void ExpectKeyChecked(v1::LoadSession load) {
    EXPECT_NE(load.router().segments_key(), 0);
    EXPECT_THAT(Load(load).code(), Not(absl::StatusCode::kUnimplemented));
    load.mutable_router()->set_segments_key(load.router().segments_key() + 1);
    EXPECT_THAT(Load(load), StatusIs(absl::StatusCode::kUnimplemented,
                                     HasSubstr("segments_key")));
  }

  ModelTable models_;
  RouterSessions sessions_{
      [] { return CreateChannel("unix:/none"); }, {}, &models_, {}};
};

TEST_F(RouterSessionsTest, RefusesModelsThatAnotherReleaseSplits) {
  ASSERT_OK_AND_ASSIGN(
      const ServingPlan plan,
      PlanServing("names@1", NamesJob("").model, "/none/checkpoint"));
  ExpectKeyChecked(plan.router_load);
}

TEST_F(RouterSessionsTest, RefusesJobsThatAnotherReleaseSplits) {
  TrainingJob job = NamesJob("/none/checkpoints");
  for (const char* dev : {"", "tests/data/names.tsv"}) {
    job.data.dev_path = dev;
    Member worker;
    worker.info = {
        .id = "w", .role = MemberRole::kExpertWorker, .address = "unix:/none"};
    TrainingStart start;
    start.tokenizer_directory = "/none";
    ASSERT_OK_AND_ASSIGN(const SessionPlan plan,
                         PlanTraining("names/1", job, start, {worker}, 0, 1));
    ExpectKeyChecked(plan.router_load);
  }
}

TEST_F(RouterSessionsTest, AModelThatCouldNotBeLoadedIsAwaitedNoLonger) {
  ASSERT_OK_AND_ASSIGN(
      const ServingPlan plan,
      PlanServing("names@1", NamesJob("").model, "/none/checkpoint"));
  models_.Expect({"names"});
  EXPECT_THAT(Load(plan.router_load), StatusIs(absl::StatusCode::kNotFound,
                                               HasSubstr("/none/checkpoint")));
  EXPECT_THAT(
      models_.Find("names").status(),
      StatusIs(absl::StatusCode::kUnavailable, HasSubstr("is being loaded")));
  // The coordinator gives it up.
  EXPECT_OK(Unload("names@1"));
  EXPECT_THAT(
      models_.Find("names").status(),
      StatusIs(absl::StatusCode::kNotFound, HasSubstr("no model 'names'")));
}

// A new version whose experts were all there, and that loses a worker in the
// moment in which it becomes the one that the name stands for.
TEST_F(RouterSessionsTest, AStandbyThatWasFullServesWhateverItLoses) {
  const ScratchDirectory scratch;
  ModelConfig model = NamesJob("").model;
  ASSERT_OK_AND_ASSIGN(const std::string checkpoint,
                       WriteDense(model, scratch.path()));
  ASSERT_OK_AND_ASSIGN(ServingPlan plan,
                       PlanServing("names@1", model, checkpoint));
  FakeWorker workers[2] = {{{}, {}}, {{}, {}}};
  v1::UpdatePlacement update;
  update.set_session("names@1");
  update.set_current(true);
  for (int w = 0; w < 2; ++w) {
    v1::WorkerPlacement placement;
    placement.set_name(absl::StrCat("w", w));
    placement.set_address(workers[w].address());
    for (int e = w; e < model.experts; e += 2) placement.add_experts(e);
    *plan.router_load.mutable_router()->mutable_placement()->add_workers() =
        placement;
    if (w == 0) *update.mutable_placement()->add_workers() = placement;
  }
  update.mutable_placement()->set_version(1);
  plan.router_load.mutable_router()->set_standby(true);
  ASSERT_OK(Load(plan.router_load));
  EXPECT_FALSE(sessions_.ready());
  v1::Command command;
  *command.mutable_update_placement() = update;
  ASSERT_OK(FromProtoStatus(sessions_.Handle(command).status()));
  ASSERT_OK_AND_ASSIGN(const auto serving, models_.Find("names"));
  EXPECT_FALSE(serving->full());
  EXPECT_TRUE(sessions_.ready());
}

// Such a model calls no worker, which would notice either.
TEST_F(RouterSessionsTest, ADenseModelIsExplainedAsLongAsSomebodyWaits) {
  const ScratchDirectory scratch;
  ModelConfig model = NamesJob("").model;
  model.experts = 0;
  ASSERT_OK_AND_ASSIGN(const std::string checkpoint,
                       WriteDense(model, scratch.path()));
  ASSERT_OK_AND_ASSIGN(const ServingPlan plan,
                       PlanServing("names@1", model, checkpoint));
  ASSERT_OK(Load(plan.router_load));
  ASSERT_OK_AND_ASSIGN(const auto serving, models_.Find("names"));
  const auto explain = [&](bool stopped, std::chrono::hours left) {
    Cancellation stop;
    if (stopped) stop.Cancel();
    return serving
        ->ExplainRouting({5, 6, 7}, {8, 9},
                         {.deadline = std::chrono::steady_clock::now() + left,
                          .all_cancelled = &stop})
        .status();
  };
  using std::chrono::hours;
  EXPECT_OK(explain(false, hours(1)));
  EXPECT_THAT(explain(true, hours(1)), StatusIs(absl::StatusCode::kCancelled,
                                                HasSubstr("was cancelled")));
  EXPECT_THAT(explain(false, hours(0)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("not traced in time")));
}

// It has no state, and the clock of its host is behind.
TEST_F(RouterSessionsTest, WhatTheNextCoordinatorPlacesCountsAtAnyVersion) {
  const ScratchDirectory scratch;
  ModelConfig model = NamesJob("").model;
  ASSERT_OK_AND_ASSIGN(const std::string checkpoint,
                       WriteDense(model, scratch.path()));
  ASSERT_OK_AND_ASSIGN(ServingPlan plan,
                       PlanServing("names@1", model, checkpoint));
  FakeWorker worker({}, {});
  v1::WorkerPlacement& placed =
      *plan.router_load.mutable_router()->mutable_placement()->add_workers();
  placed.set_name("w");
  placed.set_address(worker.address());
  for (int e = 0; e < model.experts; ++e) placed.add_experts(e);
  plan.router_load.mutable_router()->mutable_placement()->set_version(7);
  ASSERT_OK(Load(plan.router_load));
  ASSERT_OK_AND_ASSIGN(const auto serving, models_.Find("names"));
  v1::Command command;
  v1::UpdatePlacement& update = *command.mutable_update_placement();
  update.set_session("names@1");
  update.set_current(true);
  update.mutable_placement()->set_version(3);
  *update.mutable_placement()->add_workers() = placed;
  update.mutable_placement()->mutable_workers(0)->mutable_experts()->Resize(1,
                                                                            0);
  // No coordinator goes back.
  EXPECT_THAT(FromProtoStatus(sessions_.Handle(command).status()),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("placement.version: expected at least 7")));
  EXPECT_TRUE(serving->full());
  EXPECT_THAT(Load(plan.router_load),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("loaded")));
  EXPECT_OK(FromProtoStatus(sessions_.Handle(command).status()));
  EXPECT_FALSE(serving->full());
}

// The coordinator is lost while a model is released that still has calls.
TEST_F(RouterSessionsTest, AnInterruptedReleaseEndsNoCall) {
  const ScratchDirectory scratch;
  ModelConfig model = NamesJob("").model;
  model.experts = 0;
  ASSERT_OK_AND_ASSIGN(const std::string checkpoint,
                       WriteDense(model, scratch.path()));
  ASSERT_OK_AND_ASSIGN(const ServingPlan plan,
                       PlanServing("names@1", model, checkpoint));
  ASSERT_OK(Load(plan.router_load));
  ASSERT_OK_AND_ASSIGN(auto serving, models_.Find("names"));
  std::future<absl::Status> released =
      std::async(std::launch::async, [&] { return Unload("names@1"); });
  while (models_.Find("names").ok()) std::this_thread::yield();
  sessions_.Interrupt("names@1");
  EXPECT_THAT(released.get(), StatusIs(absl::StatusCode::kCancelled,
                                       HasSubstr("still has calls")));
  sessions_.DropTraining();
  // Workers keep the experts, and its calls go on.
  EXPECT_EQ(sessions_.Loads().size(), 1);
  Cancellation none;
  const auto explained = serving->ExplainRouting(
      {1, 2}, {},
      {std::chrono::steady_clock::now() + std::chrono::hours(1), &none});
  EXPECT_OK(explained);
  // The next coordinator may want it, or release it.
  EXPECT_THAT(Load(plan.router_load),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("loaded")));
  EXPECT_OK(models_.Find("names"));
  serving = nullptr;
  EXPECT_OK(Unload("names@1"));
  EXPECT_EQ(sessions_.Loads().size(), 0);
  EXPECT_EQ(sessions_.memory_bytes(), 0);
}

TEST_F(RouterSessionsTest, RefusesToBeginAtAStepThatTheJobDoesNotHave) {
  const TrainingJob job = NamesJob("/none/checkpoints");
  Member worker;
  worker.info = {
      .id = "w", .role = MemberRole::kExpertWorker, .address = "unix:/none"};
  for (const int64_t step : {int64_t{-1}, job.steps + 1}) {
    TrainingStart start;
    start.step = step;
    ASSERT_OK_AND_ASSIGN(const SessionPlan plan,
                         PlanTraining("names/1", job, start, {worker}, 0, 1));
    EXPECT_THAT(Load(plan.router_load),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("load_session.router.step: expected 0 to")));
  }
}

TEST_F(RouterSessionsTest, RefusesAJobWithoutOneHolderOfEachExpert) {
  Member worker;
  worker.info = {
      .id = "w", .role = MemberRole::kExpertWorker, .address = "unix:/none"};
  ASSERT_OK_AND_ASSIGN(const SessionPlan plan,
                       PlanTraining("names/1", NamesJob("/none/checkpoints"),
                                    TrainingStart(), {worker}, 0, 1));
  const auto refused = [&](v1::LoadSession load, const char* how) {
    EXPECT_THAT(Load(load),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(how)));
  };
  v1::LoadSession load = plan.router_load;
  auto& workers =
      *load.mutable_router()->mutable_placement()->mutable_workers();
  workers.Add()->CopyFrom(workers[0]);
  workers[1].set_name("v");
  refused(load, "placement: expected expert 0 on one worker, got it on 2");
  workers.RemoveLast();
  workers[0].mutable_experts()->RemoveLast();
  refused(load, "placement: expected expert 7 on one worker, got it on 0");
}

// A load of a text that would take hours to index stops when it is cancelled.
// The text is a sparse file of 4 TiB.
TEST_F(RouterSessionsTest, AJobThatIsCancelledIndexesNoMoreText) {
  const ScratchDirectory scratch;
  TrainingJob job = NamesJob(scratch / "checkpoints");
  job.data.train_path = scratch / "train.tsv";
  Spill(job.data.train_path, SampleLines(100, 1));
  std::filesystem::resize_file(job.data.train_path, uint64_t{1} << 42);
  Spill(scratch / "source.model",
        std::string(SampleTokenizers().source->model_bytes()));
  Member worker;
  worker.info = {
      .id = "w", .role = MemberRole::kExpertWorker, .address = "unix:/none"};
  TrainingStart start;
  start.tokenizer_directory = scratch.path();
  ASSERT_OK_AND_ASSIGN(const SessionPlan plan,
                       PlanTraining("names/1", job, start, {worker}, 0, 1));
  std::future<absl::Status> loaded =
      std::async(std::launch::async, [&] { return Load(plan.router_load); });
  // Until it writes an index.
  const std::string text = scratch / "checkpoints/text";
  while (!std::filesystem::exists(text) || std::filesystem::is_empty(text)) {
    std::this_thread::yield();
  }
  sessions_.Interrupt("names/1");
  EXPECT_THAT(loaded.get(),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("train.tsv")));
  EXPECT_TRUE(std::filesystem::is_empty(text));
}

// A job without experts, "dense/1", whose dense parameters are all this
// router's.
class DenseJobTest : public ::testing::Test {
 protected:
  DenseJobTest() {
    RegisterMoeOps();
    RegisterShardingOps();
    job_.model.experts = 0;
    Spill(scratch_ / "source.model",
          std::string(SampleTokenizers().source->model_bytes()));
    TrainingStart start;
    start.tokenizer_directory = scratch_.path();
    const auto plan = PlanTraining("dense/1", job_, start, {}, 0, 1);
    CHECK(plan.ok());
    *load_.mutable_load_session() = plan->router_load;
    *load_.mutable_load_session()->mutable_router()->mutable_dense_group() =
        DenseReduction(ReduceWay::kGloo, job_, start, {{.name = "r"}})
            .GroupOf(0);
    EXPECT_OK(Load());
  }

  absl::Status Load() {
    return FromProtoStatus(sessions_.Handle(load_).status());
  }
  std::function<v1::CommandReply()> Write(int64_t step) {
    v1::Command command;
    v1::WriteCheckpoint* const write = command.mutable_write_checkpoint();
    write->set_session("dense/1");
    write->set_step(step);
    write->set_root(scratch_.path());
    write->set_shard("router");
    return sessions_.Begin(command);
  }
  absl::Status Abort() {
    sessions_.Interrupt("dense/1");
    v1::Command command;
    command.mutable_abort_session()->set_session("dense/1");
    return FromProtoStatus(sessions_.Handle(command).status());
  }

  const ScratchDirectory scratch_;
  TrainingJob job_ = NamesJob(scratch_ / "checkpoints");
  v1::Command load_;
  Gate gate_{DiskChange::Kind::kCreate, "router.safetensors"};
  ModelTable models_;
  int channels_ = 0;  // to the coordinator
  RouterSessions sessions_{
      [this] {
        ++channels_;
        return CreateChannel("unix:/none");
      },
      {},
      &models_,
      {},
      [](const v1::DenseGroup&) -> absl::StatusOr<std::unique_ptr<Rendezvous>> {
        return std::make_unique<LocalRendezvous>(std::move(LocalWorlds(1)[0]));
      },
      {},
      {},
      /*device=*/nullptr,
      &gate_};
};

TEST_F(DenseJobTest, AnInterruptionBeforeALoadEndsThatLoadOnly) {
  EXPECT_OK(Abort());
  sessions_.Interrupt("dense/1");
  EXPECT_THAT(Load(), StatusIs(absl::StatusCode::kCancelled,
                               HasSubstr("the load was stopped")));
  EXPECT_EQ(sessions_.memory_bytes(), 0);
  EXPECT_OK(Load());
  // Nor one after the session has been removed, or the coordinator lost.
  EXPECT_OK(Abort());
  EXPECT_OK(Load());
  sessions_.Interrupt("dense/1");
  sessions_.DropTraining();
  EXPECT_OK(Load());
}

TEST_F(DenseJobTest, EachAttemptGoesToWhereTheCoordinatorIsThen) {
  const int before = channels_;
  EXPECT_OK(Abort());
  EXPECT_OK(Load());
  EXPECT_EQ(channels_, before + 1);
}

TEST_F(DenseJobTest, ReplyToCheckpointsOnceTheShardIsWritten) {
  EXPECT_TRUE(sessions_.Begin(v1::Command()) == nullptr);  // for Handle()
  auto rest = Write(0);
  gate_.Open();
  const v1::CommandReply reply = rest();
  EXPECT_OK(FromProtoStatus(reply.status()));
  EXPECT_GT(reply.checkpoint_written().tensors_size(), 0);
  EXPECT_THAT(FromProtoStatus(Write(1)().status()),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("last step committed, 0, got 1")));
  // The session is gone although the function still exists.
  EXPECT_OK(Abort());
  EXPECT_THAT(FromProtoStatus(Write(0)().status()),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("dense/1")));
}

TEST_F(DenseJobTest, AbortEndsTheWritingAndWaitsForIt) {
  auto rest = Write(0);
  std::future<v1::CommandReply> written =
      std::async(std::launch::async, [&] { return rest(); });
  gate_.WaitUntilReached();
  sessions_.Interrupt("dense/1");
  std::promise<void> begun;
  std::atomic<bool> opened{false};
  std::future<absl::Status> aborted = std::async(std::launch::async, [&] {
    begun.set_value();
    const absl::Status status = Abort();
    EXPECT_TRUE(opened);
    return status;
  });
  begun.get_future().wait();
  EXPECT_GT(sessions_.memory_bytes(), 0);
  opened = true;
  gate_.Open();
  EXPECT_OK(aborted.get());
  EXPECT_EQ(sessions_.memory_bytes(), 0);
  EXPECT_THAT(
      FromProtoStatus(written.get().status()),
      StatusIs(absl::StatusCode::kCancelled, HasSubstr("no longer wanted")));
}

TEST_F(DenseJobTest, AShardThatIsNotBegunHoldsNothing) {
  auto rest = Write(0);
  rest = nullptr;
  EXPECT_OK(Abort());
  EXPECT_EQ(sessions_.memory_bytes(), 0);
}

}  // namespace
}  // namespace gshard
