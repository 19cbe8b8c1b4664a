#include "services/coordinator/membership/members.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/rpc/process/member_client.h"
#include "services/rpc/wire/status.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class RecordingSender final : public StreamSender<v1::JoinResponse> {
 public:
  absl::Status Send(v1::JoinResponse message) override {
    if (!status.ok()) return status;
    sent.push_back(std::move(message));
    return absl::OkStatus();
  }
  void Finish(const absl::Status& with) override { finished = with; }
  void Cancel() override {}

  absl::Status status;
  std::vector<v1::JoinResponse> sent;
  std::optional<absl::Status> finished;
};

v1::RegisterMember Registration(const std::string& name = "w1") {
  v1::RegisterMember request;
  request.set_role(v1::MEMBER_ROLE_EXPERT_WORKER);
  request.set_name(name);
  request.set_address("unix:/tmp/w1");
  request.set_protocol_version(1);
  return request;
}

class MembersTest : public ::testing::Test {
 protected:
  MemberKey Join(const std::string& name = "w1") {
    const auto key = members_.Register(Registration(name), sender_);
    CHECK(key.ok());
    return *key;
  }

  // Sends an empty command and appends its outcome to outcomes_.
  void Send(const MemberKey& key) {
    members_.Send(key, v1::Command(),
                  [this](const absl::StatusOr<v1::CommandReply>& reply) {
                    outcomes_.push_back(reply.status());
                  });
  }

  MonotonicTime now_ = MonotonicTime() + absl::Seconds(1000);
  int changes_ = 0;
  std::vector<absl::Status> outcomes_;
  std::shared_ptr<RecordingSender> sender_ =
      std::make_shared<RecordingSender>();
  // The lease is so long that the thread of Members never checks it.
  Members members_{{.lease = absl::Hours(24),
                    .clock = [this] { return now_; },
                    .on_change = [this] { ++changes_; }}};
};

TEST_F(MembersTest, RefusesWhatIsNoMember) {
  const auto refuse = [&](auto change, absl::StatusCode code,
                          const std::string& message) {
    v1::RegisterMember request = Registration();
    change(request);
    EXPECT_THAT(members_.Register(request, sender_),
                StatusIs(code, HasSubstr(message)));
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  refuse([](auto& r) { r.clear_role(); }, kInvalid, "register.role");
  refuse([](auto& r) { r.set_name("a b"); }, kInvalid, "a b");
  refuse([](auto& r) { r.set_name(""); }, kInvalid, "");
  refuse([](auto& r) { r.set_address("nowhere"); }, kInvalid,
         "register.address");
  refuse([](auto& r) { r.set_memory_bytes(-1); }, kInvalid, "-1");
  refuse([](auto& r) { r.set_protocol_version(2); },
         absl::StatusCode::kFailedPrecondition,
         "expected 1, which the coordinator speaks, got 2");
  EXPECT_THAT(members_.List(), IsEmpty());
  Join();
  refuse([](auto&) {}, absl::StatusCode::kAlreadyExists, "w1");
  EXPECT_EQ(changes_, 1);
}

// The newest protocol version that both sides know is used, whichever side of
// two consecutive releases is upgraded first.
TEST(MembersVersionsTest, SpeaksTheNewestVersionThatBothKnow) {
  const auto accepted = [](ProtocolVersions coordinator, int32_t oldest,
                           int32_t newest) -> absl::StatusOr<int32_t> {
    Members members({.lease = absl::Hours(24), .versions = coordinator});
    const auto sender = std::make_shared<RecordingSender>();
    v1::RegisterMember request = Registration();
    request.set_oldest_protocol_version(oldest);
    request.set_protocol_version(newest);
    const auto key = members.Register(request, sender);
    if (!key.ok()) return key.status();
    return sender->sent[0].accepted().protocol_version();
  };
  EXPECT_EQ(*accepted({1, 2}, 0, 1), 1);  // the oldest is not given
  EXPECT_EQ(*accepted({1, 2}, 1, 2), 2);
  EXPECT_EQ(*accepted({1, 2}, 2, 3), 2);
  EXPECT_EQ(*accepted({1, 1}, 1, 2), 1);
  EXPECT_THAT(accepted({1, 2}, 0, 3),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("expected 1 to 2")));
  EXPECT_THAT(
      accepted({2, 3}, 0, 1),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("got 1")));
  EXPECT_THAT(accepted({1, 2}, 3, 2),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("")));
}

TEST_F(MembersTest, AcceptsAndDescribes) {
  const MemberKey key = Join();
  ASSERT_THAT(sender_->sent, SizeIs(1));
  EXPECT_EQ(sender_->sent[0].accepted().lease_ms(), 86'400'000);
  EXPECT_EQ(sender_->sent[0].accepted().heartbeat_interval_ms(), 17'280'000);
  now_ += absl::Seconds(5);
  v1::Heartbeat load;
  load.set_expert_rows(7);
  ASSERT_OK(members_.OnHeartbeat(key, load));
  now_ += absl::Seconds(2);
  const std::vector<v1::Member> members = members_.Describe();
  ASSERT_THAT(members, SizeIs(1));
  EXPECT_EQ(members[0].name(), "w1");
  EXPECT_EQ(members[0].silent_ms(), 2000);
  EXPECT_EQ(members[0].joined_ms(), 7000);
  EXPECT_EQ(members[0].heartbeat().expert_rows(), 7);
}

TEST_F(MembersTest, PairsRepliesWithCommands) {
  const MemberKey key = Join();
  Send(key);
  Send(key);
  ASSERT_THAT(sender_->sent, SizeIs(3));
  v1::CommandReply reply;
  reply.set_command_id(sender_->sent[2].command().command_id());
  *reply.mutable_status() = ToProtoStatus(absl::DataLossError("rotten"));
  ASSERT_OK(members_.OnCommandReply(key, reply));
  EXPECT_THAT(outcomes_, ElementsAre(StatusIs(absl::StatusCode::kDataLoss,
                                              HasSubstr("'w1': rotten"))));
  EXPECT_THAT(members_.OnCommandReply(key, reply),  // a duplicate
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("reply.command_id")));
  reply.clear_status();
  reply.set_command_id(sender_->sent[1].command().command_id());
  ASSERT_OK(members_.OnCommandReply(key, reply));
  EXPECT_EQ(outcomes_.back(), absl::OkStatus());
}

// A member that sends heartbeats but holds up commands.
class HeldUpTest : public MembersTest {
 protected:
  void Send(const MemberKey& key, v1::Command command) {
    members_.Send(key, std::move(command),
                  [this](const absl::StatusOr<v1::CommandReply>& reply) {
                    outcomes_.push_back(reply.status());
                  });
  }

  // Passes `minutes` minutes, with a heartbeat at the end of each.
  void Pass(const MemberKey& key, int minutes) {
    for (int i = 0; i < minutes; ++i) {
      now_ += absl::Minutes(1);
      (void)members_.OnHeartbeat(key, v1::Heartbeat());
      members_.Expire();
    }
  }

  void ExpectCutOff(const std::string& why) {
    ASSERT_THAT(outcomes_, SizeIs(1));
    EXPECT_THAT(outcomes_[0],
                StatusIs(absl::StatusCode::kUnavailable,
                         HasSubstr(absl::StrCat("'w1' was lost: ", why))));
    EXPECT_THAT(members_.List(), IsEmpty());
    EXPECT_EQ(changes_, 2);
    // The member may join again.
    EXPECT_NE(Join().incarnation, 0);
  }
};

TEST_F(HeldUpTest, AMemberThatHoldsUpACommandIsCutOff) {
  const MemberKey key = Join();
  v1::Command prepare;
  prepare.mutable_prepare_step()->set_session("demo/1");
  Send(key, prepare);
  Pass(key, 9);
  EXPECT_THAT(outcomes_, IsEmpty());
  Pass(key, 1);
  ExpectCutOff("prepare_step of demo/1 has not been done in 10m");
}

TEST_F(HeldUpTest, AMemberWithoutCommandsIsNot) {
  const MemberKey key = Join();
  Pass(key, 100);
  EXPECT_THAT(members_.List(), SizeIs(1));
}

TEST_F(HeldUpTest, LoadsAndCheckpointsHaveALongerTime) {
  const MemberKey key = Join();
  v1::Command load;
  load.mutable_load_session()->set_session("demo/1");
  Send(key, load);
  Pass(key, 119);
  EXPECT_THAT(outcomes_, IsEmpty());
  Pass(key, 1);
  ExpectCutOff("load_session of demo/1 has not been done in 2h");
}

// Members finish a load before they drop its session, so a command behind a
// load gets the load's time in addition.
TEST_F(HeldUpTest, WhatComesBehindALoadHasItsTimeBesides) {
  const MemberKey key = Join();
  v1::Command load, abort;
  load.mutable_load_session()->set_session("demo/1");
  abort.mutable_abort_session()->set_session("demo/1");
  Send(key, load);
  Send(key, abort);
  Pass(key, 119);
  EXPECT_THAT(outcomes_, IsEmpty());
  v1::CommandReply loaded;
  loaded.set_command_id(sender_->sent[1].command().command_id());
  ASSERT_OK(members_.OnCommandReply(key, loaded));
  ASSERT_THAT(outcomes_, ElementsAre(absl::OkStatus()));
  outcomes_.clear();
  Pass(key, 10);
  EXPECT_THAT(outcomes_, IsEmpty());
  Pass(key, 1);
  ExpectCutOff("abort_session of demo/1 has not been done in 2h10m");
}

TEST_F(HeldUpTest, TheLoadOfAnotherSessionIsNoExcuse) {
  const MemberKey key = Join();
  v1::Command load, abort;
  load.mutable_load_session()->set_session("demo/2");
  abort.mutable_abort_session()->set_session("demo/1");
  Send(key, load);
  Send(key, abort);
  Pass(key, 9);
  EXPECT_THAT(members_.List(), SizeIs(1));
  Pass(key, 1);
  EXPECT_THAT(members_.List(), IsEmpty());
}

TEST_F(HeldUpTest, AMicrobatchHasItsOwnTimeAndThatOfOneBefore) {
  const MemberKey key = Join();
  v1::Command assign;
  assign.mutable_assign_microbatch()->set_session("demo/1");
  assign.mutable_assign_microbatch()->set_timeout_ms(60'000);
  Send(key, assign);
  Pass(key, 11);
  EXPECT_THAT(outcomes_, IsEmpty());
  Pass(key, 1);
  ExpectCutOff("assign_microbatch of demo/1");
}

TEST_F(MembersTest, ALostMemberFailsItsCommands) {
  const MemberKey key = Join();
  Send(key);
  members_.OnEnd(key, absl::CancelledError("gone"));
  EXPECT_THAT(outcomes_, ElementsAre(StatusIs(absl::StatusCode::kUnavailable,
                                              HasSubstr("'w1' was lost"))));
  EXPECT_EQ(changes_, 2);
  EXPECT_THAT(members_.List(), IsEmpty());
  Send(key);
  EXPECT_THAT(outcomes_.back(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("w1")));
  members_.OnEnd(key, absl::OkStatus());  // already known
  EXPECT_EQ(changes_, 2);
  // Messages of the earlier registration have no effect.
  const MemberKey again = Join();
  EXPECT_NE(key, again);
  EXPECT_THAT(members_.OnHeartbeat(key, {}),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("")));
  members_.OnEnd(key, absl::OkStatus());
  EXPECT_THAT(members_.List(), SizeIs(1));
}

TEST_F(MembersTest, ASilentMemberIsCutOff) {
  const MemberKey key = Join();
  now_ += absl::Hours(23);
  ASSERT_OK(members_.OnHeartbeat(key, {}));
  now_ += absl::Hours(23);
  members_.Expire();
  EXPECT_THAT(members_.List(), SizeIs(1));
  Send(key);
  now_ += absl::Hours(1);
  members_.Expire();
  EXPECT_THAT(members_.List(), IsEmpty());
  ASSERT_TRUE(sender_->finished.has_value());
  EXPECT_THAT(*sender_->finished, StatusIs(absl::StatusCode::kDeadlineExceeded,
                                           HasSubstr("the lease ran out")));
  EXPECT_THAT(outcomes_, SizeIs(1));
}

TEST_F(MembersTest, AnExpiryThatNobodyNoticedDoesNotKeepTheName) {
  const MemberKey key = Join();
  Send(key);
  now_ += absl::Hours(25);
  const MemberKey again = Join();
  EXPECT_NE(key.incarnation, again.incarnation);
  EXPECT_THAT(outcomes_, SizeIs(1));
  EXPECT_THAT(members_.List(), SizeIs(1));
}

TEST_F(MembersTest, ABrokenStreamFailsTheCommandOnce) {
  const MemberKey key = Join();
  sender_->status = absl::UnavailableError("the stream has ended");
  Send(key);
  EXPECT_THAT(outcomes_, SizeIs(1));
  members_.OnEnd(key, absl::OkStatus());
  EXPECT_THAT(outcomes_, SizeIs(1));
}

TEST_F(MembersTest, RoutersAreToldWhatTheyAreToServe) {
  Members members({.models = [] { return std::set<std::string>{"a", "b"}; }});
  ASSERT_OK(members.Register(Registration(), sender_));
  EXPECT_THAT(sender_->sent.back().accepted().models(), IsEmpty());
  v1::RegisterMember router = Registration("r1");
  router.set_role(v1::MEMBER_ROLE_ROUTER);
  ASSERT_OK(members.Register(router, sender_));
  EXPECT_THAT(sender_->sent.back().accepted().models(), ElementsAre("a", "b"));
}

TEST_F(MembersTest, AWorkerThatWantsToLeaveIsToldOnceThatItMay) {
  v1::RegisterMember request = Registration();
  request.set_failure_domain("zone/node-1");
  ASSERT_OK_AND_ASSIGN(const MemberKey key,
                       members_.Register(request, sender_));
  EXPECT_TRUE(sender_->sent.back().accepted().answers_leaving());
  EXPECT_THAT(members_.Workers(), SizeIs(1));
  EXPECT_EQ(members_.Describe()[0].failure_domain(), "zone/node-1");
  v1::Heartbeat heartbeat;
  heartbeat.set_leaving(true);
  ASSERT_OK(members_.OnHeartbeat(key, heartbeat));
  ASSERT_OK(members_.OnHeartbeat(key, heartbeat));
  EXPECT_EQ(changes_, 2);  // it joined, and asked to leave
  EXPECT_THAT(members_.Workers(), IsEmpty());
  EXPECT_THAT(members_.List(), SizeIs(1));
  const size_t before = sender_->sent.size();
  for (int i = 0; i < 2; ++i) members_.LetGo(key, "nothing is left");
  ASSERT_EQ(sender_->sent.size(), before + 1);
  EXPECT_EQ(sender_->sent.back().may_leave().reason(), "nothing is left");
  request.set_name("w2");
  request.set_failure_domain("a b");
  EXPECT_THAT(members_.Register(request, sender_),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a b")));
}

TEST_F(MembersTest, TellsWhenServedModelsTakeAnotherAmountOfMemory) {
  const MemberKey key = Join();
  const MemberKey other = Join("w2");
  ASSERT_EQ(changes_, 2);
  members_.SetServed({{key, 5}});
  EXPECT_EQ(changes_, 3);
  members_.SetServed({{key, 5}, {{"w3", 1}, 7}});
  EXPECT_EQ(changes_, 3);
  EXPECT_EQ(members_.Workers()[0].served_bytes, 5);
  EXPECT_EQ(members_.Workers()[1].served_bytes, 0);
  members_.SetServed({{other, 5}});
  EXPECT_EQ(changes_, 4);
  EXPECT_EQ(members_.Workers()[0].served_bytes, 0);
  EXPECT_EQ(members_.Workers()[1].served_bytes, 5);
}

TEST_F(MembersTest, ALeavingRouterIsAMemberWithoutNewWork) {
  v1::RegisterMember router = Registration("r1");
  router.set_role(v1::MEMBER_ROLE_ROUTER);
  const auto key = members_.Register(router, sender_);
  ASSERT_OK(key);
  EXPECT_THAT(members_.Routers(), SizeIs(1));
  EXPECT_THAT(members_.Workers(), IsEmpty());
  v1::Heartbeat leaving;
  leaving.set_leaving(true);
  ASSERT_OK(members_.OnHeartbeat(*key, leaving));
  EXPECT_THAT(members_.Routers(), IsEmpty());
  EXPECT_THAT(members_.List(MemberRole::kRouter), SizeIs(1));
}

TEST_F(MembersTest, ShutdownSendsAllAway) {
  const MemberKey key = Join();
  Send(key);
  members_.Shutdown();
  EXPECT_TRUE(sender_->sent.back().has_may_leave());
  EXPECT_THAT(*sender_->finished,
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("")));
  EXPECT_THAT(outcomes_, SizeIs(1));
  EXPECT_THAT(members_.Register(Registration("w2"), sender_),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("")));
}

}  // namespace
}  // namespace gshard
