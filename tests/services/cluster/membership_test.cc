#include "services/cluster/membership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

MemberInfo Worker(std::string id) {
  return {.id = std::move(id),
          .role = MemberRole::kExpertWorker,
          .address = "10.0.0.1:7000"};
}

MemberInfo Router(std::string id) {
  return {.id = std::move(id), .role = MemberRole::kRouter, .address = ""};
}

// Each test scripts events at given seconds and checks their outcome.
class MembershipTest : public ::testing::Test {
 protected:
  static MonotonicTime At(double seconds) {
    return MonotonicTime() + absl::Seconds(seconds);
  }

  absl::StatusOr<Member> Join(const MemberInfo& info, double seconds) {
    return membership_.Join(info, At(seconds));
  }

  // The ids of the members that expire.
  std::vector<std::string> Expire(double seconds) {
    std::vector<std::string> ids;
    for (const Member& member : membership_.Expire(At(seconds))) {
      ids.push_back(member.info.id);
    }
    return ids;
  }

  std::vector<std::string> Ids(std::optional<MemberRole> role = std::nullopt) {
    std::vector<std::string> ids;
    for (const Member& member : membership_.List(role)) {
      ids.push_back(member.info.id);
    }
    return ids;
  }

  Membership membership_{{.lease = absl::Seconds(10), .max_members = 3}};
};

TEST_F(MembershipTest, MembersJoinAndAreListedInOrder) {
  ASSERT_OK(Join(Worker("worker-1"), 0));
  ASSERT_OK(Join(Router("router-0"), 1));
  ASSERT_OK(Join(Worker("worker-0"), 2));
  EXPECT_THAT(Ids(), ElementsAre("router-0", "worker-0", "worker-1"));
  EXPECT_THAT(Ids(MemberRole::kExpertWorker),
              ElementsAre("worker-0", "worker-1"));
  EXPECT_THAT(Ids(MemberRole::kRouter), ElementsAre("router-0"));
  ASSERT_NE(membership_.Find("worker-0"), nullptr);
  EXPECT_EQ(membership_.Find("worker-0")->joined, At(2));
  EXPECT_EQ(membership_.Find("worker-7"), nullptr);
}

TEST_F(MembershipTest, ARenewedLeaseOutlivesASilentOne) {
  ASSERT_OK_AND_ASSIGN(const Member busy, Join(Worker("busy"), 0));
  ASSERT_OK(Join(Worker("silent"), 0));
  EXPECT_EQ(membership_.NextExpiry(), At(10));

  ASSERT_OK(membership_.Renew("busy", busy.incarnation, At(6)));
  EXPECT_THAT(Expire(9.999), IsEmpty());
  EXPECT_THAT(Expire(10), ElementsAre("silent"));
  EXPECT_THAT(Ids(), ElementsAre("busy"));
  EXPECT_EQ(membership_.NextExpiry(), At(16));

  EXPECT_THAT(Expire(16), ElementsAre("busy"));
  EXPECT_EQ(membership_.NextExpiry(), MonotonicTime::InfiniteFuture());
}

TEST_F(MembershipTest, ALateRenewalComesTooLate) {
  ASSERT_OK_AND_ASSIGN(const Member member, Join(Worker("worker-0"), 0));
  EXPECT_THAT(
      membership_.Renew("worker-0", member.incarnation, At(12)),
      StatusIs(absl::StatusCode::kNotFound, HasSubstr("it expired 2s ago")));
  Expire(12);
  EXPECT_THAT(membership_.Renew("worker-0", member.incarnation, At(12)),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("never joined, left or expired")));
}

TEST_F(MembershipTest, ADelayedRenewalDoesNotShortenTheLease) {
  ASSERT_OK_AND_ASSIGN(const Member member, Join(Worker("worker-0"), 0));
  ASSERT_OK(membership_.Renew("worker-0", member.incarnation, At(8)));
  ASSERT_OK(membership_.Renew("worker-0", member.incarnation, At(3)));
  EXPECT_EQ(membership_.NextExpiry(), At(18));
}

TEST_F(MembershipTest, AnIdBelongsToItsHolderUntilTheLeaseEnds) {
  ASSERT_OK(Join(Worker("worker-0"), 0));
  EXPECT_THAT(Join(Worker("worker-0"), 9),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       HasSubstr("holds a lease for 1s")));
  // Without a sweep in between, the new one takes its place.
  ASSERT_OK(Join(Worker("worker-0"), 11));
  EXPECT_THAT(Expire(11), IsEmpty());
  EXPECT_THAT(Ids(), ElementsAre("worker-0"));
}

TEST_F(MembershipTest, ARestartedMemberIsNotTheOneBefore) {
  ASSERT_OK_AND_ASSIGN(const Member first, Join(Worker("worker-0"), 0));
  ASSERT_OK(membership_.Leave("worker-0", first.incarnation));
  ASSERT_OK_AND_ASSIGN(const Member second, Join(Worker("worker-0"), 1));
  EXPECT_GT(second.incarnation, first.incarnation);

  EXPECT_THAT(membership_.Renew("worker-0", first.incarnation, At(2)),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("expected incarnation 2, got 1")));
  EXPECT_THAT(membership_.Leave("worker-0", first.incarnation),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("expected incarnation 2, got 1")));
  EXPECT_OK(membership_.Renew("worker-0", second.incarnation, At(2)));
}

TEST_F(MembershipTest, AMemberLeavesOnce) {
  ASSERT_OK_AND_ASSIGN(const Member member, Join(Worker("worker-0"), 0));
  ASSERT_OK(membership_.Leave("worker-0", member.incarnation));
  EXPECT_THAT(Ids(), IsEmpty());
  EXPECT_THAT(membership_.Leave("worker-0", member.incarnation),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("has no lease")));
  EXPECT_THAT(Expire(100), IsEmpty());
}

TEST_F(MembershipTest, AFullClusterTakesNobodyUntilOneGoes) {
  for (const char* id : {"a", "b", "c"}) ASSERT_OK(Join(Worker(id), 0));
  EXPECT_THAT(Join(Worker("d"), 1),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       "members: expected at most 3, got one more, \"d\""));
  // A member whose lease has expired can rejoin a full cluster.
  ASSERT_OK(Join(Worker("a"), 11));
  EXPECT_THAT(Ids(), ElementsAre("a", "b", "c"));
  Expire(11);
  EXPECT_THAT(Ids(), ElementsAre("a"));
  EXPECT_OK(Join(Worker("d"), 11));
}

TEST_F(MembershipTest, MalformedMembersAreRefusedByField) {
  const auto invalid = [](const char* start) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(start));
  };
  EXPECT_THAT(Join(Worker(""), 0), invalid("id: expected 1 to 128"));
  EXPECT_THAT(Join(Worker("a b"), 0), invalid("got \"a b\""));
  EXPECT_THAT(Join(Worker(std::string(129, 'x')), 0), invalid("id: expected"));
  EXPECT_THAT(Join(Worker("\xff\n"), 0), invalid("got \"\\xff\\n\""));

  MemberInfo member = Worker("worker-0");
  member.address = "";
  EXPECT_THAT(Join(member, 0), invalid("address: expected 1 to 256"));
  member.address = "a host:1";
  EXPECT_THAT(Join(member, 0), invalid("without spaces, got \"a host:1\""));
  member = Worker("worker-0");
  member.capacity_bytes = -1;
  EXPECT_THAT(Join(member, 0),
              invalid("capacity_bytes: expected at least 0, got -1"));
  member = Worker("worker-0");
  member.role = static_cast<MemberRole>(9);
  EXPECT_THAT(Join(member, 0), invalid("role: expected router or expert "
                                       "worker, got 9"));
  EXPECT_THAT(Ids(), IsEmpty());
}

TEST_F(MembershipTest, MembersOfARoleComputeOnOneKindOfDevice) {
  MemberInfo gpu = Worker("gpu");
  gpu.device = "cuda";
  ASSERT_OK(Join(Router("router"), 0));
  ASSERT_OK(Join(gpu, 0));
  EXPECT_THAT(Join(Worker("cpu"), 1),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("device: expected cuda, as that of \"gpu\", "
                                 "got cpu")));
  MemberInfo router = Router("other-router");
  router.device = "cuda";
  EXPECT_THAT(
      Join(router, 1),
      StatusIs(absl::StatusCode::kFailedPrecondition,
               HasSubstr("device: expected cpu, as that of \"router\"")));
  // A member whose lease has expired does not count, even before a sweep.
  EXPECT_OK(Join(Worker("cpu"), 100));
  MemberInfo other = Worker("other");
  other.device = "tpu";
  EXPECT_THAT(Join(other, 100), StatusIs(absl::StatusCode::kInvalidArgument,
                                         HasSubstr("device")));
}

TEST_F(MembershipTest, AMemberWantsToLeaveOnce) {
  ASSERT_OK_AND_ASSIGN(const Member member, Join(Worker("w1"), 0));
  EXPECT_FALSE(member.leaving);
  EXPECT_FALSE(membership_.SetLeaving("w2", member.incarnation));
  EXPECT_FALSE(membership_.SetLeaving("w1", member.incarnation + 1));
  EXPECT_TRUE(membership_.SetLeaving("w1", member.incarnation));
  EXPECT_FALSE(membership_.SetLeaving("w1", member.incarnation));
  EXPECT_TRUE(membership_.Find("w1")->leaving);
}

TEST(MembershipDevicesTest, MayBeMixedIfThatIsAllowed) {
  Membership membership({.allow_mixed_devices = true});
  MemberInfo gpu = Worker("gpu");
  gpu.device = "cuda";
  EXPECT_OK(membership.Join(gpu, MonotonicTime()));
  EXPECT_OK(membership.Join(Worker("cpu"), MonotonicTime()));
}

TEST_F(MembershipTest, KnowsWhatServedModelsTake) {
  ASSERT_OK_AND_ASSIGN(const Member member, Join(Worker("w1"), 0));
  EXPECT_EQ(member.served_bytes, 0);
  EXPECT_FALSE(membership_.SetServed("w2", member.incarnation, 5));
  EXPECT_FALSE(membership_.SetServed("w1", member.incarnation + 1, 5));
  EXPECT_TRUE(membership_.SetServed("w1", member.incarnation, 5));
  EXPECT_FALSE(membership_.SetServed("w1", member.incarnation, 5));
  EXPECT_EQ(membership_.Find("w1")->served_bytes, 5);
  ASSERT_OK_AND_ASSIGN(const Member again, Join(Worker("w1"), 100));
  EXPECT_EQ(again.served_bytes, 0);
}

}  // namespace
}  // namespace gshard
