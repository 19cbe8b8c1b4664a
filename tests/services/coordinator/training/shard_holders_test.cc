#include "services/coordinator/training/shard_holders.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/config/training_job.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Three workers with one expert each, and two routers, the second of which owns
// no tensors.
std::vector<ShardHolder> Holders() {
  std::vector<ShardHolder> holders;
  for (int w = 0; w < 3; ++w) {
    holders.push_back(
        {.member = {absl::StrCat("w", w), 1},
         .role = MemberRole::kExpertWorker,
         .tensors = {absl::StrCat("wi/", w), absl::StrCat("wo/", w)}});
  }
  holders.push_back({.member = {"r0", 5},
                     .role = MemberRole::kRouter,
                     .tensors = {"a", "b"}});
  holders.push_back(
      {.member = {"r1", 5}, .role = MemberRole::kRouter, .tensors = {}});
  return holders;
}

// Replies to prepare: the squared norm of holder i's tensors is i + 1.
std::vector<v1::CommandReply> Prepared(
    const std::vector<ShardHolder>& holders) {
  std::vector<v1::CommandReply> replies(holders.size());
  for (size_t i = 0; i < holders.size(); ++i) {
    for (const std::string& tensor : holders[i].tensors) {
      v1::GradientNorm* const norm =
          replies[i].mutable_step_prepared()->add_norms();
      norm->set_tensor(tensor);
      norm->set_squared_norm(static_cast<double>(i + 1));
    }
  }
  return replies;
}

TEST(ShardHoldersTest, WorkersHaveTheExpertsOfTheirPlaces) {
  TrainingJob job;
  job.model.encoder_layers = job.model.decoder_layers = 1;
  job.model.moe_period = 1;
  job.model.experts = 3;
  SessionPlan plan;
  for (int w = 0; w < 2; ++w) {
    plan.workers.push_back({absl::StrCat("w", w), 7});
    plan.router_load.mutable_router()->mutable_placement()->add_workers();
  }
  v1::Placement* const placement =
      plan.router_load.mutable_router()->mutable_placement();
  placement->mutable_workers(0)->add_experts(0);
  placement->mutable_workers(0)->add_experts(1);
  placement->mutable_workers(1)->add_experts(2);
  const std::vector<ShardHolder> workers = WorkersOf(plan, job.model);
  ASSERT_THAT(workers, SizeIs(2));
  EXPECT_EQ(NameOf(workers[1]), "expert worker 'w1'");
  EXPECT_EQ(workers[0].tensors.size(), 2 * workers[1].tensors.size());
  EXPECT_THAT(workers[1].tensors,
              ElementsAre("encoder.0.moe.wi/2", "encoder.0.moe.wo/2",
                          "decoder.0.moe.wi/2", "decoder.0.moe.wo/2"));
}

TEST(ShardHoldersTest, AllArePreparedAndRoutersToldWhoRanWhat) {
  v1::PrepareStep prepare;
  prepare.set_step(4);
  prepare.add_attempts(2);
  const MemberCommands commands =
      PrepareCommands(Holders(), prepare, {1, 0, 1});
  ASSERT_THAT(commands, SizeIs(5));
  for (size_t i = 0; i < commands.size(); ++i) {
    const v1::PrepareStep& own = commands[i].second.prepare_step();
    EXPECT_EQ(commands[i].first, Holders()[i].member);
    EXPECT_EQ(own.step(), 4);
    EXPECT_THAT(own.attempts(), ElementsAre(2));
    if (i < 3) {
      EXPECT_THAT(own.ran_by(), IsEmpty());
    } else {
      EXPECT_THAT(own.ran_by(), ElementsAre(1, 0, 1));
    }
  }
}

TEST(ShardHoldersTest, NormsAreThoseOfWhatEachHas) {
  const std::vector<ShardHolder> holders = Holders();
  std::vector<v1::CommandReply> replies = Prepared(holders);
  std::vector<SquaredNorm> norms;
  ASSERT_OK(AddNorms(holders, 6, replies, &norms));
  ASSERT_EQ(norms.size(), 8u);
  EXPECT_EQ(norms[2].tensor, "wi/1");
  EXPECT_EQ(norms[2].value, 2.0);
  EXPECT_EQ(norms[7].tensor, "b");
  EXPECT_EQ(norms[7].value, 4.0);

  auto bad = replies;
  bad[3].mutable_step_prepared()->mutable_norms()->RemoveLast();
  EXPECT_THAT(
      AddNorms(holders, 6, bad, &norms),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("router 'r0', step 6: expected norms of 2 tensors, "
                         "got 1 of which 1 are its own")));
  bad = replies;
  *bad[1].mutable_step_prepared()->add_norms() =
      replies[0].step_prepared().norms(0);
  EXPECT_THAT(AddNorms(holders, 6, bad, &norms),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("expert worker 'w1', step 6: expected norms "
                                 "of 2 tensors, got 3 of which 2")));
  std::swap(replies[0], replies[1]);
  EXPECT_THAT(AddNorms(holders, 6, replies, &norms),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("of which 0 are its own")));
}

TEST(ShardHoldersTest, ThoseWhoHaveSomethingWriteIt) {
  v1::WriteCheckpoint write;
  write.set_step(4);
  const MemberCommands commands =
      WriteCommands(Holders(), write, "owner", /*attempt=*/3);
  ASSERT_THAT(commands, SizeIs(4));
  EXPECT_EQ(commands[1].first.name, "w1");
  EXPECT_EQ(commands[1].second.write_checkpoint().shard(), "owner-worker-1-3");
  EXPECT_EQ(commands[3].first.name, "r0");
  EXPECT_EQ(commands[3].second.write_checkpoint().shard(), "owner-router-0-3");
  for (const auto& [member, command] : commands) {
    EXPECT_EQ(command.write_checkpoint().step(), 4);
    EXPECT_FALSE(command.write_checkpoint().include_replica());
  }
}

TEST(ShardHoldersTest, BuddiesWriteWhatTheLostHad) {
  std::vector<ShardHolder> workers = Holders();
  workers.resize(3);
  for (size_t lost = 0; lost < 3; ++lost) {
    SCOPED_TRACE(lost);
    const MemberCommands commands =
        WriteCommands(workers, v1::WriteCheckpoint(), "t", 1, {lost});
    ASSERT_THAT(commands, SizeIs(2));
    for (const auto& [member, command] : commands) {
      EXPECT_NE(member, workers[lost].member);
      EXPECT_EQ(command.write_checkpoint().include_replica(),
                member == workers[(lost + 1) % 3].member);
    }
  }
}

TEST(ShardHoldersTest, TheFirstTensorThatIsNotFiniteIsNamed) {
  ModelConfig model = TrainingJob().model;
  model.experts = 2;
  model.moe_period = 1;
  const double inf = std::numeric_limits<double>::infinity();
  std::vector<SquaredNorm> norms = {{"decoder.0.moe.wi/0", 1.0},
                                    {"encoder.0.moe.wi/1", 2.0}};
  EXPECT_OK(CheckFinite(model, 3, 1.5, norms));
  EXPECT_THAT(CheckFinite(model, 3, inf, norms),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("step 3: the loss is inf; all gradients are "
                                 "finite")));
  for (SquaredNorm& norm : norms) norm.value = inf;
  EXPECT_THAT(CheckFinite(model, 3, 1.5, norms),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("the gradient of encoder.0.moe.wi/1 is not "
                                 "finite, the first of 2")));
}

}  // namespace
}  // namespace gshard
