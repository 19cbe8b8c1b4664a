#include "tests/services/collectives/local_world.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/collectives/collectives.h"
#include "tests/services/collectives/collectives_cases.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using ::testing::_;
using ::testing::AllOf;
using ::testing::HasSubstr;

class LocalWorldSizes : public ::testing::TestWithParam<int> {};

TEST_P(LocalWorldSizes, CollectivesAreThoseOfThePlainLoops) {
  EXPECT_OK(RunOnDevices(GetParam(), RunCollectivesCases));
}

TEST_P(LocalWorldSizes, ManySmallExchangesKeepTheirOrder) {
  EXPECT_OK(RunOnDevices(GetParam(), [](World& world) -> absl::Status {
    ASSIGN_OR_RETURN(Communicator* const comm, WholeGroup(world));
    for (int32_t i = 0; i < 300; ++i) {
      ASSIGN_OR_RETURN(
          const Tensor all,
          AllGather(*comm, Tensor::Ints({1}, {i * 10 + comm->rank()}), 0));
      for (int r = 0; r < comm->size(); ++r) {
        if (all.i32()[r] != i * 10 + r) {
          return absl::DataLossError(absl::StrCat("round ", i));
        }
      }
    }
    return absl::OkStatus();
  }));
}

INSTANTIATE_TEST_SUITE_P(, LocalWorldSizes, ::testing::Values(1, 2, 3, 4, 8));

TEST(LocalWorldTest, DisagreementIsSeenByAllMembersAndSurvived) {
  std::atomic<int> saw{0};
  EXPECT_OK(RunOnDevices(3, [&](World& world) -> absl::Status {
    ASSIGN_OR_RETURN(Communicator* const comm, WholeGroup(world));
    const int64_t size = world.rank() == 2 ? 5 : 4;
    const auto gathered =
        AllGather(*comm, Tensor::Zeros(ElementType::kUint8, {size}), 0);
    if (absl::IsInvalidArgument(gathered.status()) &&
        absl::StrContains(
            gathered.status().message(),
            "rank 2 expected 5 bytes from rank 0, which sent 4")) {
      ++saw;
    }
    return AllReduce(*comm, Tensor::Floats({1}, {1.0f})).status();
  }));
  EXPECT_EQ(saw, 3);
}

TEST(LocalWorldTest, ExchangeWantsAnEntryForEachMember) {
  EXPECT_OK(RunOnDevices(2, [](World& world) -> absl::Status {
    ASSIGN_OR_RETURN(Communicator* const comm, WholeGroup(world));
    const SendBytes send[1];
    const ReceiveBytes receive[2];
    EXPECT_THAT(comm->Exchange(send, receive),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("expected 2 entries")));
    char byte = 0;
    SendBytes own[2];
    own[world.rank()] = {&byte, 1};
    EXPECT_THAT(
        comm->Exchange(own, receive),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("from itself")));
    return absl::OkStatus();
  }));
}

TEST(LocalWorldTest, TheErrorOfADeviceEndsTheRun) {
  std::atomic<int> cancelled{0};
  const absl::Status status =
      RunOnDevices(4, [&](World& world) -> absl::Status {
        if (world.rank() == 2) return absl::DataLossError("a bad disk");
        const auto comm = WholeGroup(world);
        const absl::Status waited =
            comm.ok() ? AllReduce(**comm, Tensor::Floats({1}, {1.0f})).status()
                      : comm.status();
        if (absl::IsCancelled(waited)) ++cancelled;
        return waited;
      });
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kDataLoss,
                       AllOf(HasSubstr("device 2"), HasSubstr("a bad disk"))));
  EXPECT_EQ(cancelled, 3);
}

TEST(LocalWorldTest, ADeviceThatEndsIsMissed) {
  const absl::Status status = RunOnDevices(3, [](World& world) -> absl::Status {
    ASSIGN_OR_RETURN(Communicator* const comm, WholeGroup(world));
    if (world.rank() == 1) return absl::OkStatus();
    return AllReduce(*comm, Tensor::Floats({1}, {1.0f})).status();
  });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable,
                               HasSubstr("device 1 is gone")));
}

TEST(LocalWorldTest, GroupsFormedAfterADeviceEndedMissIt) {
  auto worlds = LocalWorlds(3);
  worlds[1].reset();
  ASSERT_OK_AND_ASSIGN(Communicator* const with, worlds[0]->Group({0, 1}));
  EXPECT_THAT(AllReduce(*with, Tensor::Floats({1}, {1.0f})),
              StatusIs(absl::StatusCode::kUnavailable, _));
  ASSERT_OK_AND_ASSIGN(Communicator* const without, worlds[0]->Group({0}));
  EXPECT_OK(AllReduce(*without, Tensor::Floats({1}, {1.0f})));
}

TEST(LocalWorldTest, AbortWakesThoseThatWait) {
  auto worlds = LocalWorlds(2);
  ASSERT_OK_AND_ASSIGN(Communicator* const comm, WholeGroup(*worlds[0]));
  std::thread waiting([&] {
    EXPECT_THAT(AllReduce(*comm, Tensor::Floats({1}, {1.0f})),
                StatusIs(absl::StatusCode::kCancelled, HasSubstr("enough")));
  });
  worlds[1]->Abort(absl::DeadlineExceededError("enough"));
  waiting.join();
  EXPECT_THAT(worlds[1]->Group({0, 1}),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("enough")));
}

TEST(LocalWorldTest, GroupsAreCachedAndChecked) {
  auto worlds = LocalWorlds(3);
  World& world = *worlds[1];
  ASSERT_OK_AND_ASSIGN(Communicator* const group, world.Group({2, 1}));
  EXPECT_EQ(group->rank(), 1);
  EXPECT_EQ(group->size(), 2);
  ASSERT_OK_AND_ASSIGN(Communicator* const again, world.Group({2, 1}));
  EXPECT_EQ(group, again);
  ASSERT_OK_AND_ASSIGN(Communicator* const other, world.Group({1, 2}));
  EXPECT_NE(group, other);
  for (const std::vector<int>& wrong :
       std::vector<std::vector<int>>{{}, {0, 2}, {1, 1}, {1, 3}, {-1, 1}}) {
    EXPECT_THAT(world.Group(wrong),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("from 0 to 2 with 1 among them")));
  }
}

}  // namespace
}  // namespace gshard
