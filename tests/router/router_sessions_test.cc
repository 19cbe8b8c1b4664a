// What a router refuses to load.

#include "router/router_sessions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "services/coordinator/session_plan.h"
#include "services/moe/graph_ops.h"
#include "services/rpc/channel.h"
#include "services/rpc/status.h"
#include "services/segments/call_segment.h"
#include "tests/integration/names_job.h"
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
  // The router's release would split the model as its coordinator has, and then
  // in another way.
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
    ASSERT_OK_AND_ASSIGN(
        const SessionPlan plan,
        PlanTraining("names/1", job, start, {worker}, 1, 0, 1));
    ExpectKeyChecked(plan.router_load);
  }
}

}  // namespace
}  // namespace gshard
