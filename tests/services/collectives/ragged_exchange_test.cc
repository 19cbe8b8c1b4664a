#include "services/collectives/ragged_exchange.h"

#include <gtest/gtest.h>

#include "services/base/status_macros.h"
#include "tests/services/collectives/local_world.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

// Three experts on two devices: the first has experts 0 and 1, the second has
// expert 2 and an empty slot. A row's digits are (device, expert, number).
Tensor Rows(int device) {
  return device == 0 ? Tensor::Ints({4}, {1, 10, 11, 20})
                     : Tensor::Ints({3}, {100, 101, 120});
}
Tensor Sizes(int device) {
  return device == 0 ? Tensor::Ints({3}, {1, 2, 1})
                     : Tensor::Ints({3}, {2, 0, 1});
}

TEST(RaggedExchangeTest, RowsGoToTheirExpertsAndBack) {
  EXPECT_OK(RunOnDevices(2, [](World& world) -> absl::Status {
    const int rank = world.rank();
    ASSIGN_OR_RETURN(Communicator* const comm, WholeGroup(world));
    ASSIGN_OR_RETURN(const RaggedRows mine,
                     RaggedAllToAll(*comm, Rows(rank), Sizes(rank)));
    if (rank == 0) {
      EXPECT_TRUE(
          TensorEqual(mine.rows, Tensor::Ints({5}, {1, 100, 101, 10, 11})));
      EXPECT_TRUE(TensorEqual(mine.group_sizes, Tensor::Ints({2}, {3, 2})));
      EXPECT_TRUE(TensorEqual(mine.counts, Tensor::Ints({2, 2}, {1, 2, 2, 0})));
    } else {
      EXPECT_TRUE(TensorEqual(mine.rows, Tensor::Ints({2}, {20, 120})));
      EXPECT_TRUE(TensorEqual(mine.group_sizes, Tensor::Ints({2}, {2, 0})));
      EXPECT_TRUE(TensorEqual(mine.counts, Tensor::Ints({2, 2}, {1, 0, 1, 0})));
    }
    ASSIGN_OR_RETURN(
        const Tensor back,
        RaggedAllToAllBack(*comm, mine.rows, mine.counts, Sizes(rank)));
    EXPECT_TRUE(TensorEqual(back, Rows(rank)));
    return absl::OkStatus();
  }));
}

TEST(RaggedExchangeTest, ResultsMayBeOfAnotherWidthAndType) {
  EXPECT_OK(RunOnDevices(2, [](World& world) -> absl::Status {
    ASSIGN_OR_RETURN(Communicator* const comm, WholeGroup(world));
    ASSIGN_OR_RETURN(
        const RaggedRows mine,
        RaggedAllToAll(*comm, Rows(world.rank()), Sizes(world.rank())));
    Tensor outputs(ElementType::kFloat32, {mine.rows.dim(0), 2});
    for (int64_t i = 0; i < outputs.size(); ++i) {
      outputs.f32()[i] = mine.rows.i32()[i / 2] + 0.5f * (i % 2);
    }
    ASSIGN_OR_RETURN(
        const Tensor back,
        RaggedAllToAllBack(*comm, outputs, mine.counts, Sizes(world.rank())));
    if (world.rank() == 1) {
      EXPECT_TRUE(TensorEqual(
          back,
          Tensor::Floats({3, 2}, {100, 100.5f, 101, 101.5f, 120, 120.5f})));
    }
    return absl::OkStatus();
  }));
}

TEST(RaggedExchangeTest, EveryoneCanHaveAllRows) {
  EXPECT_OK(RunOnDevices(2, [](World& world) -> absl::Status {
    ASSIGN_OR_RETURN(Communicator* const comm, WholeGroup(world));
    ASSIGN_OR_RETURN(
        const RaggedRows all,
        RaggedAllGather(*comm, Rows(world.rank()), Sizes(world.rank())));
    EXPECT_TRUE(TensorEqual(all.rows,
                            Tensor::Ints({7}, {1, 100, 101, 10, 11, 20, 120})));
    EXPECT_TRUE(TensorEqual(all.group_sizes, Tensor::Ints({3}, {3, 2, 2})));
    EXPECT_TRUE(
        TensorEqual(all.counts, Tensor::Ints({2, 3}, {1, 2, 1, 2, 0, 1})));
    for (const int rank : {0, 1}) {
      ASSIGN_OR_RETURN(const Tensor part,
                       RaggedLocalRows(all.rows, all.counts, rank));
      EXPECT_TRUE(TensorEqual(part, Rows(rank)));
    }
    return absl::OkStatus();
  }));
}

TEST(RaggedExchangeTest, ExpertsAreCutIntoBlocks) {
  EXPECT_EQ(ExpertBlock(8, 4), 2);
  EXPECT_EQ(ExpertBlock(9, 4), 3);
  EXPECT_EQ(ExpertBlock(1, 4), 1);
}

TEST(RaggedExchangeTest, WidthsThatDifferAreSeen) {
  const absl::Status status = RunOnDevices(2, [](World& world) -> absl::Status {
    ASSIGN_OR_RETURN(Communicator* const comm, WholeGroup(world));
    const Tensor rows =
        Tensor::Zeros(ElementType::kFloat32, {2, 3 + world.rank()});
    return RaggedAllToAll(*comm, rows, Tensor::Ints({2}, {1, 1})).status();
  });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                               HasSubstr("bytes from rank")));
}

TEST(RaggedExchangeTest, WrongArgumentsAreRefusedBeforeAnythingIsSent) {
  // Rank 1 takes no part, so an exchange could not complete.
  auto worlds = LocalWorlds(2);
  ASSERT_OK_AND_ASSIGN(Communicator* const comm, WholeGroup(*worlds[0]));
  const auto refused = [](const char* what) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(what));
  };
  const Tensor rows = Rows(0), sizes = Sizes(0);
  const Tensor counts = Tensor::Ints({2, 2}, {1, 2, 1, 0});
  EXPECT_THAT(RaggedAllToAll(*comm, Rows(1), sizes),
              refused("expected 4 rows"));
  EXPECT_THAT(RaggedAllToAll(*comm, Tensor(), sizes), refused("got nothing"));
  EXPECT_THAT(RaggedAllToAll(*comm, rows, Tensor::Floats({1}, {4})),
              refused("got f32[1]"));
  EXPECT_THAT(RaggedAllToAll(*comm, rows, Tensor::Ints({0}, {})),
              refused("for E > 0"));
  EXPECT_THAT(RaggedAllToAll(*comm, rows, Tensor::Ints({2}, {5, -1})),
              refused("got -1"));
  EXPECT_THAT(
      RaggedAllToAll(*comm, rows, Tensor::Ints({2}, {2000000000, 2000000000})),
      refused("fewer than 2^31 rows"));
  EXPECT_THAT(RaggedAllGather(*comm, Rows(1), sizes),
              refused("expected 4 rows"));
  EXPECT_THAT(RaggedAllToAllBack(*comm, rows, sizes, sizes),
              refused("expected counts i32[n, E], got i32[3]"));
  EXPECT_THAT(
      RaggedAllToAllBack(*comm, rows, Tensor::Ints({2, 1}, {1, 3}), sizes),
      refused("expected counts i32[2, 2]"));
  EXPECT_THAT(RaggedAllToAllBack(*comm, Rows(1), counts, sizes),
              refused("expected 4 rows"));
  EXPECT_THAT(RaggedLocalRows(rows, counts, 2), refused("got 2"));
  EXPECT_THAT(RaggedLocalRows(Rows(1), counts, 0), refused("expected 4 rows"));
}

}  // namespace
}  // namespace gshard
