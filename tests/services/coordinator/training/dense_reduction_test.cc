#include "services/coordinator/training/dense_reduction.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::SizeIs;

TrainingJob Job() {
  TrainingJob job;
  job.name = "demo";
  job.model.encoder_layers = job.model.decoder_layers = 1;
  job.model.model_width = 8;
  job.model.source_vocabulary_size = job.model.target_vocabulary_size = 64;
  job.seed = 7;
  job.optimizer = AdamConfig();
  return job;
}

DenseReduction Routers(int count, const TrainingStart& start = {}) {
  std::vector<MemberKey> routers;
  for (int r = 0; r < count; ++r) routers.push_back({absl::StrCat("r", r), 5});
  return DenseReduction(ReduceWay::kGloo, Job(), start, std::move(routers));
}

v1::SessionLoaded Loaded(int rank, int count) {
  v1::SessionLoaded loaded;
  for (int r = 0; r < count; ++r) {
    loaded.add_addresses(absl::StrCat(rank, " for ", r));
  }
  return loaded;
}

TEST(DenseReductionTest, WaysHaveNames) {
  for (const ReduceWay way :
       {ReduceWay::kCoordinator, ReduceWay::kGloo, ReduceWay::kNccl}) {
    ASSERT_OK_AND_ASSIGN(const ReduceWay again,
                         ReduceWayFromName(ReduceWayName(way)));
    EXPECT_EQ(again, way);
  }
  EXPECT_THAT(
      ReduceWayFromName("mpi"),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("got 'mpi'")));
}

TEST(DenseReductionTest, EachDenseParameterHasAnOwner) {
  const DenseReduction reduction = Routers(3);
  std::set<std::string> owned;
  for (int rank = 0; rank < 3; ++rank) {
    const v1::DenseGroup group = reduction.GroupOf(rank);
    EXPECT_EQ(group.rank(), rank);
    EXPECT_EQ(group.transport(), v1::DenseGroup::GLOO);
    EXPECT_EQ(group.source().initial_seed(), 7);
    EXPECT_EQ(group.timeout_ms(), 120000);
    ASSERT_THAT(group.owners(), SizeIs(3));
    EXPECT_EQ(group.owners(rank).router(), absl::StrCat("r", rank));
    owned.insert(group.owners(rank).tensors().begin(),
                 group.owners(rank).tensors().end());
  }
  EXPECT_EQ(owned.size(),
            ParametersOf(Job().model, /*per_expert=*/false).size());
  const std::vector<ShardHolder> holders = reduction.holders();
  ASSERT_THAT(holders, SizeIs(3));
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(NameOf(holders[rank]), absl::StrCat("router 'r", rank, "'"));
    EXPECT_EQ(holders[rank].member, reduction.routers()[rank]);
    EXPECT_THAT(holders[rank].tensors,
                ElementsAreArray(reduction.GroupOf(0).owners(rank).tensors()));
  }
  EXPECT_EQ(reduction.RankOf({"r2", 5}), 2);
  EXPECT_EQ(reduction.RankOf({"r2", 6}), std::nullopt);  // a later registration
}

TEST(DenseReductionTest, StartsFromACheckpoint) {
  const DenseReduction reduction = Routers(1, {.step = 9,
                                               .skipped_steps = 2,
                                               .checkpoint_directory = "/c",
                                               .tokenizer_directory = ""});
  const v1::DenseGroup group = reduction.GroupOf(0);
  EXPECT_EQ(group.source().checkpoint_directory(), "/c");
  EXPECT_EQ(group.step(), 9);
  EXPECT_EQ(group.skipped_steps(), 2);
}

TEST(DenseReductionTest, HandsAddressesOn) {
  DenseReduction reduction = Routers(2);
  ASSERT_OK(reduction.OnLoaded(1, Loaded(1, 2)));
  EXPECT_FALSE(reduction.all_loaded());
  ASSERT_OK(reduction.OnLoaded(0, Loaded(0, 2)));
  EXPECT_TRUE(reduction.all_loaded());
  const MemberCommands commands = reduction.Connect("demo/1");
  ASSERT_THAT(commands, SizeIs(2));
  EXPECT_EQ(commands[1].first.name, "r1");
  EXPECT_EQ(commands[1].second.connect_routers().session(), "demo/1");
  EXPECT_THAT(commands[1].second.connect_routers().addresses(),
              ElementsAre("0 for 1", "1 for 1"));
}

TEST(DenseReductionTest, AddressesAreChecked) {
  DenseReduction reduction = Routers(2);
  EXPECT_THAT(reduction.OnLoaded(1, Loaded(1, 3)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("router 'r1': expected addresses for 2")));
  v1::SessionLoaded loaded = Loaded(0, 2);
  loaded.set_addresses(1, std::string(257, 'x'));
  EXPECT_THAT(
      reduction.OnLoaded(0, loaded),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("got 257")));
  EXPECT_FALSE(reduction.all_loaded());
}

}  // namespace
}  // namespace gshard
