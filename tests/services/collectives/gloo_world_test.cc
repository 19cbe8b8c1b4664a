#include "tests/services/collectives/gloo_world.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <thread>
#include <vector>

#include "services/base/status_macros.h"
#include "services/collectives/collectives.h"
#include "tests/services/collectives/collectives_cases.h"
#include "tests/services/collectives/local_world.h"
#include "tests/testing/gloo_members.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using std::chrono::milliseconds;
using ::testing::_;
using ::testing::HasSubstr;

absl::Status AddOne(World& world) {
  ASSIGN_OR_RETURN(Communicator* const comm, WholeGroup(world));
  return AllReduce(*comm, Tensor::Floats({1}, {1.0f})).status();
}

class GlooThreads : public ::testing::TestWithParam<int> {};

TEST_P(GlooThreads, CollectivesAreThoseOfThePlainLoops) {
  for (const absl::Status& status :
       RunOnGlooThreads(GetParam(), RunCollectivesCases)) {
    EXPECT_OK(status);
  }
}

INSTANTIATE_TEST_SUITE_P(, GlooThreads, ::testing::Values(1, 2, 3, 4));

TEST(GlooWorldTest, SumsHaveTheBitsOfLocalDevices) {
  std::vector<Tensor> local(3), remote(3);
  const auto sum_into = [](std::vector<Tensor>* sums) {
    return [sums](World& world) -> absl::Status {
      ASSIGN_OR_RETURN(Communicator* const comm, WholeGroup(world));
      ASSIGN_OR_RETURN(
          (*sums)[world.rank()],
          AllReduce(*comm, RandomTensor({12345}, world.rank(), 1000.0f)));
      return absl::OkStatus();
    };
  };
  ASSERT_OK(RunOnDevices(3, sum_into(&local)));
  for (const auto& status : RunOnGlooThreads(3, sum_into(&remote))) {
    ASSERT_OK(status);
  }
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(TensorEqual(local[rank], local[0]));
    EXPECT_TRUE(TensorEqual(remote[rank], local[0]));
  }
}

TEST(GlooWorldTest, AMemberThatLeavesIsMissedByAll) {
  const auto statuses = RunOnGlooThreads(4, [](World& world) -> absl::Status {
    RETURN_IF_ERROR(AddOne(world));
    return world.rank() == 2 ? absl::OkStatus() : AddOne(world);
  });
  EXPECT_OK(statuses[2]);
  for (const int rank : {0, 1, 3}) {
    EXPECT_THAT(statuses[rank], StatusIs(absl::StatusCode::kUnavailable,
                                         HasSubstr("exchange 1 of rank")));
  }
}

// Rank 0 fails as rank 2 leaves; rank 1, which waits for rank 0, fails, too.
TEST(GlooWorldTest, AMemberThatFailsTellsThoseThatWaitForIt) {
  std::promise<void> rank_1_knows;
  const auto statuses = RunOnGlooThreads(
      3,
      [&](World& world) -> absl::Status {
        RETURN_IF_ERROR(AddOne(world));
        if (world.rank() == 2) return absl::OkStatus();
        ASSIGN_OR_RETURN(Communicator* const comm, WholeGroup(world));
        const Tensor one = Tensor::Ints({1}, {1});
        absl::Status status = Permute(*comm, one, {2, -1, -1}).status();
        if (world.rank() == 0) {
          rank_1_knows.get_future().wait();
          return status;
        }
        EXPECT_OK(status);
        status = Permute(*comm, one, {-1, 0, -1}).status();
        rank_1_knows.set_value();
        return status;
      },
      std::chrono::seconds(5));
  EXPECT_THAT(statuses[0], StatusIs(absl::StatusCode::kUnavailable, _));
  EXPECT_THAT(statuses[1], StatusIs(absl::StatusCode::kUnavailable, _));
}

TEST(GlooWorldTest, ABrokenGroupStaysBroken) {
  const auto statuses = RunOnGlooThreads(2, [](World& world) -> absl::Status {
    RETURN_IF_ERROR(AddOne(world));
    if (world.rank() == 1) return absl::OkStatus();
    const absl::Status first = AddOne(world);
    EXPECT_THAT(first, StatusIs(absl::StatusCode::kUnavailable, _));
    EXPECT_EQ(AddOne(world), first);
    return absl::OkStatus();
  });
  for (const absl::Status& status : statuses) EXPECT_OK(status);
}

TEST(GlooWorldTest, AMemberThatDoesNotExchangeIsWaitedForUntilTheTimeout) {
  const RendezvousFolder folder;
  const auto options = [&](int rank) {
    return MemberOptions(folder.path(), rank, 2, milliseconds(300));
  };
  ASSERT_OK_AND_ASSIGN(const auto silent, GlooWorld::Create(options(1)));
  absl::Status status;
  std::thread waiting([&] {
    const auto world = GlooWorld::Create(options(0));
    status = world.ok() ? AddOne(**world) : world.status();
  });
  EXPECT_OK(WholeGroup(*silent));
  waiting.join();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kDeadlineExceeded,
                               HasSubstr("exchange 0 of rank 0 of 2")));
}

TEST(GlooWorldTest, AMemberThatNeverComesIsWaitedForUntilTheTimeout) {
  for (const int rank : {0, 1}) {
    const RendezvousFolder folder;
    ASSERT_OK_AND_ASSIGN(const auto world,
                         GlooWorld::Create(MemberOptions(folder.path(), rank, 2,
                                                         milliseconds(200))));
    EXPECT_THAT(WholeGroup(*world),
                StatusIs(absl::StatusCode::kDeadlineExceeded,
                         HasSubstr("joining group_0_1")));
  }
}

TEST(GlooWorldTest, DisagreementAboutSizesEndsWithoutACrash) {
  const auto statuses = RunOnGlooThreads(
      2,
      [](World& world) -> absl::Status {
        ASSIGN_OR_RETURN(Communicator* const comm, WholeGroup(world));
        const int64_t size = 10 + 90 * world.rank();
        return AllGather(*comm, Tensor::Zeros(ElementType::kUint8, {size}), 0)
            .status();
      },
      milliseconds(300));
  // The first rank to time out closes its connections, which ends the other.
  bool timed_out = false;
  for (const absl::Status& status : statuses) {
    EXPECT_FALSE(status.ok());
    timed_out = timed_out || absl::IsDeadlineExceeded(status);
  }
  EXPECT_TRUE(timed_out);
}

TEST(GlooWorldTest, CreateChecksItsOptions) {
  const RendezvousFolder folder;
  GlooOptions options = MemberOptions(folder.path(), 2, 2);
  EXPECT_THAT(GlooWorld::Create(options),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("got rank 2 of 2")));
  options = MemberOptions(folder.path(), 0, 2, milliseconds(0));
  EXPECT_THAT(
      GlooWorld::Create(options),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("timeout")));
  options = MemberOptions(folder.path() + "/absent", 0, 2);
  EXPECT_THAT(GlooWorld::Create(options),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/absent")));
  options = MemberOptions(folder.path(), 0, 2);
  options.host = "192.0.2.1";  // reserved for documentation
  EXPECT_THAT(GlooWorld::Create(options),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("host '192.0.2.1'")));
}

TEST(GlooWorldTest, GroupsAreCachedAndChecked) {
  const RendezvousFolder folder;
  ASSERT_OK_AND_ASSIGN(const auto world,
                       GlooWorld::Create(MemberOptions(folder.path(), 1, 3)));
  ASSERT_OK_AND_ASSIGN(Communicator* const alone, world->Group({1}));
  ASSERT_OK_AND_ASSIGN(Communicator* const again, world->Group({1}));
  EXPECT_EQ(alone, again);
  EXPECT_THAT(world->Group({0, 2}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("from 0 to 2 with 1 among them")));
}

}  // namespace
}  // namespace gshard
