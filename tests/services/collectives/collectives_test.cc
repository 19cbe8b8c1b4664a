// Small examples of the collectives, and the arguments they refuse. For many
// arguments, see tests/services/collectives/collectives_cases.cc.

#include "services/collectives/collectives.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "services/base/status_macros.h"
#include "tests/services/collectives/local_world.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

// Runs `member` on two devices with the group of both.
template <typename Member>
void OnTwoDevices(const Member& member) {
  EXPECT_OK(RunOnDevices(2, [&](World& world) -> absl::Status {
    ASSIGN_OR_RETURN(Communicator* const comm, WholeGroup(world));
    member(*comm);
    return absl::OkStatus();
  }));
}

TEST(CollectivesTest, AllReduceAdds) {
  OnTwoDevices([](Communicator& comm) {
    const float rank = comm.rank();
    ASSERT_OK_AND_ASSIGN(const Tensor sum,
                         AllReduce(comm, Tensor::Floats({2}, {1, 10 * rank})));
    EXPECT_TRUE(TensorEqual(sum, Tensor::Floats({2}, {2, 10})));
    ASSERT_OK_AND_ASSIGN(
        const Tensor most,
        AllReduce(comm, Tensor::Floats({1}, {rank}), Reduction::kMax));
    EXPECT_TRUE(TensorEqual(most, Tensor::Floats({1}, {1})));
  });
}

TEST(CollectivesTest, NanOfAnyMemberSpreads) {
  OnTwoDevices([](Communicator& comm) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    // Element 0 is NaN on rank 0, element 1 on rank 1.
    const Tensor own = comm.rank() == 0 ? Tensor::Floats({3}, {nan, 1, 5})
                                        : Tensor::Floats({3}, {1, nan, 7});
    for (const auto& [reduction, expected] :
         {std::pair(Reduction::kSum, 12), {Reduction::kMax, 7}}) {
      ASSERT_OK_AND_ASSIGN(const Tensor got, AllReduce(comm, own, reduction));
      EXPECT_TRUE(std::isnan(got.f32()[0]));
      EXPECT_TRUE(std::isnan(got.f32()[1]));
      EXPECT_EQ(got.f32()[2], expected);
    }
  });
}

TEST(CollectivesTest, SumsOfIntegersWrapAround) {
  OnTwoDevices([](Communicator& comm) {
    const int32_t most = std::numeric_limits<int32_t>::max();
    ASSERT_OK_AND_ASSIGN(const Tensor sum,
                         AllReduce(comm, Tensor::Ints({1}, {most})));
    EXPECT_EQ(sum.i32()[0], -2);
  });
}

TEST(CollectivesTest, PartsGoAroundInRankOrder) {
  OnTwoDevices([](Communicator& comm) {
    const int rank = comm.rank();
    const Tensor own = Tensor::Ints({2}, {10 * rank, 10 * rank + 1});
    ASSERT_OK_AND_ASSIGN(const Tensor all, AllGather(comm, own, 0));
    EXPECT_TRUE(TensorEqual(all, Tensor::Ints({4}, {0, 1, 10, 11})));
    ASSERT_OK_AND_ASSIGN(const Tensor exchanged, AllToAll(comm, own, 0, 0));
    EXPECT_TRUE(TensorEqual(exchanged, Tensor::Ints({2}, {rank, 10 + rank})));
    ASSERT_OK_AND_ASSIGN(const Tensor part, ReduceScatter(comm, own, 0));
    EXPECT_TRUE(TensorEqual(part, Tensor::Ints({1}, {10 + 2 * rank})));
    ASSERT_OK_AND_ASSIGN(const Tensor moved, Permute(comm, own, {-1, 0}));
    EXPECT_TRUE(TensorEqual(moved, rank == 0 ? Tensor::Ints({2}, {0, 0})
                                             : Tensor::Ints({2}, {0, 1})));
  });
}

TEST(CollectivesTest, WrongArgumentsAreRefusedBeforeAnythingIsSent) {
  // Rank 1 takes no part, so an exchange could not complete.
  auto worlds = LocalWorlds(2);
  ASSERT_OK_AND_ASSIGN(Communicator* const comm, WholeGroup(*worlds[0]));
  const auto refused = [](const char* what) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(what));
  };
  const Tensor odd = RandomTensor({2, 3}, 1);
  const Tensor bytes = Tensor::Zeros(ElementType::kUint8, {2});
  EXPECT_THAT(AllReduce(*comm, Tensor()), refused("got an absent one"));
  EXPECT_THAT(AllReduce(*comm, bytes), refused("all-reduce: expected f32"));
  EXPECT_THAT(ReduceScatter(*comm, bytes, 0), refused("got u8"));
  EXPECT_THAT(ReduceScatter(*comm, odd, 1),
              refused("expected dimension 1 of f32[2, 3] to divide by the 2"));
  EXPECT_THAT(ReduceScatter(*comm, odd, 2), refused("got 2"));
  EXPECT_THAT(AllGather(*comm, odd, -1), refused("got -1"));
  EXPECT_THAT(AllGather(*comm, Tensor(), 0), refused("got an absent one"));
  EXPECT_THAT(AllToAll(*comm, odd, 1, 0), refused("to divide by the 2"));
  EXPECT_THAT(AllToAll(*comm, odd, 0, 2), refused("got 2"));
  EXPECT_THAT(Permute(*comm, odd, {0}), refused("2 sources from -1 to 1"));
  EXPECT_THAT(Permute(*comm, odd, {0, 2}), refused("got [0, 2]"));
  EXPECT_THAT(Permute(*comm, odd, {-2, 0}), refused("got [-2, 0]"));
  EXPECT_THAT(Permute(*comm, Tensor(), {0, 1}), refused("an absent one"));
}

}  // namespace
}  // namespace gshard
