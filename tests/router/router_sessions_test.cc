// RouterSessions: loads that a router refuses, and loads that are cancelled.

#include "router/router_sessions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>

#include "services/coordinator/membership/session_plan.h"
#include "services/moe/graph_ops.h"
#include "services/rpc/client/channel.h"
#include "services/rpc/wire/status.h"
#include "services/segments/call_segment.h"
#include "tests/integration/names_job.h"
#include "tests/services/data/sample_text.h"
#include "tests/services/storage/scratch_directory.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

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
  RouterSessions sessions_{*CreateChannel("unix:/none", {}), {}, &models_, {}};
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
  // Repeated, because the load may not have begun.
  do {
    sessions_.Interrupt("names/1");
  } while (loaded.wait_for(std::chrono::milliseconds(1)) !=
           std::future_status::ready);
  EXPECT_THAT(loaded.get(),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("train.tsv")));
  EXPECT_TRUE(std::filesystem::is_empty(scratch / "checkpoints/text"));
}

}  // namespace
}  // namespace gshard
