#include "services/rpc/server/connection_meter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kMiB = 1 << 20;

// A meter whose connections receive what the test says.
class ConnectionMeterTest : public ::testing::Test {
 protected:
  using Id = ConnectionMeter::Id;

  void Open(Id connection, const std::string& host = "a") {
    ASSERT_OK(meter_.Open(connection, host, now_));
  }
  void Begin(Id call, Id connection, int64_t max_message,
             bool one_message = true) {
    meter_.Begin(call,
                 {.connection = connection,
                  .max_message = max_message,
                  .header_bytes = 256,
                  .one_message = one_message},
                 now_);
  }
  void BeginBrief(Id call, Id connection) {
    meter_.Begin(call,
                 {.connection = connection,
                  .max_message = 4096,
                  .one_message = true,
                  .brief = true},
                 now_);
  }
  // The connection receives `bytes` more bytes.
  void Receive(Id connection, int64_t bytes) {
    received_[connection] += bytes;
    meter_.Receive(connection, received_[connection], now_);
  }
  std::vector<Id> EndedAtOnce() {
    std::vector<Id> ended;
    for (const auto& each : meter_.Judge(now_).connections) {
      ended.push_back(each.connection);
    }
    return ended;
  }
  // Includes connections that end once kPatience has passed.
  std::vector<Id> Ended() {
    std::vector<Id> ended = EndedAtOnce();
    now_ += ConnectionMeter::kPatience + milliseconds(1);
    for (const Id id : EndedAtOnce()) ended.push_back(id);
    return ended;
  }

  ConnectionMeter meter_{{.connections = 5,
                          .peer_connections = 3,
                          .held_bytes = 32 * kMiB,
                          .request_time = seconds(20)}};
  ConnectionMeter::Time now_{seconds(1000)};
  std::map<Id, int64_t> received_;
};

TEST_F(ConnectionMeterTest, CountsConnectionsInAllAndFromAHost) {
  const auto kFull = absl::StatusCode::kResourceExhausted;
  for (Id i = 1; i <= 3; ++i) Open(i, "a");
  EXPECT_THAT(meter_.Open(4, "a", now_),
              StatusIs(kFull, HasSubstr("at most 3 connections from one")));
  Open(4, "b");
  Open(5, "c");
  EXPECT_THAT(meter_.Open(6, "d", now_),
              StatusIs(kFull, HasSubstr("at most 5 connections")));
  EXPECT_EQ(meter_.connections(), 5);
  meter_.Close(2);
  Open(6, "a");
}

TEST_F(ConnectionMeterTest, AFullServerHasRoomForProbesOfItsMachine) {
  const auto kFull = absl::StatusCode::kResourceExhausted;
  for (Id i = 1; i <= 5; ++i) Open(i, absl::StrCat("host ", i));
  Id next = 6;
  for (; meter_.connections() < 5 + ConnectionMeter::kOwnConnections; ++next) {
    ASSERT_OK(meter_.Open(next, absl::StrCat("own ", next / 3), now_,
                          /*own=*/true));
  }
  EXPECT_THAT(meter_.Open(next, "own", now_, /*own=*/true),
              StatusIs(kFull, HasSubstr("at most 5 connections")));
  meter_.Close(6);
  EXPECT_THAT(meter_.Open(next, "d", now_),
              StatusIs(kFull, HasSubstr("at most 5 connections")));
}

// A host that had a connection ended may begin new ones only kPause apart until
// kMistrust has passed, so that it cannot come back at once, over and over.
TEST_F(ConnectionMeterTest, AHostThatHadOneEndedBeginsOthersInTurn) {
  Open(1, "a");
  EXPECT_TRUE(meter_.MayBegin(1, now_));
  Begin(10, 1, 4096);
  Receive(1, kMiB);
  EXPECT_THAT(Ended(), ElementsAre(1));
  meter_.End(10);
  meter_.Close(1);
  Open(2, "a");
  Open(3, "a");
  Open(4, "b");
  EXPECT_TRUE(meter_.MayBegin(2, now_));
  EXPECT_FALSE(meter_.MayBegin(3, now_));
  EXPECT_TRUE(meter_.MayBegin(4, now_));
  now_ += ConnectionMeter::kPause;
  EXPECT_TRUE(meter_.MayBegin(3, now_));
  Open(5, "a");
  EXPECT_FALSE(meter_.MayBegin(5, now_));
  now_ += ConnectionMeter::kMistrust;
  EXPECT_TRUE(meter_.MayBegin(5, now_));
  EXPECT_TRUE(meter_.MayBegin(5, now_));
}

TEST_F(ConnectionMeterTest, AStalledHealthCheckHasNoRoomForMoreThanItsMessage) {
  Open(1);
  Begin(10, 1, 4096);
  Receive(1, 80 << 10);
  EXPECT_THAT(Ended(), IsEmpty());
  Receive(1, 80 << 10);
  EXPECT_THAT(Ended(), ElementsAre(1));
  // A connection is reported once and no longer counted.
  EXPECT_THAT(Ended(), IsEmpty());
  EXPECT_EQ(meter_.held(), 0);
}

// Messages arrive before their calls begin, here 256 of 64 KiB at once, so
// calls have kPatience to begin.
TEST_F(ConnectionMeterTest, ABurstOfCallsHasTimeToBegin) {
  Open(1);
  Receive(1, 256 * (64 << 10));
  EXPECT_THAT(EndedAtOnce(), IsEmpty());
  now_ += ConnectionMeter::kPatience;
  EXPECT_THAT(EndedAtOnce(), IsEmpty());
  for (Id call = 10; call < 266; ++call) {
    Begin(call, 1, 4 * kMiB);
    meter_.Deliver(call, 60 << 10);
    meter_.End(call);
  }
  Receive(1, 0);
  EXPECT_THAT(Ended(), IsEmpty());
  EXPECT_EQ(meter_.held(), 0);
}

TEST_F(ConnectionMeterTest, EachCallMaySendItsMessageAndALittleMore) {
  Open(1);
  for (Id call = 10; call < 12; ++call) Begin(call, 1, 4 * kMiB);
  Receive(1, 16 * kMiB);
  EXPECT_THAT(Ended(), IsEmpty());
  Receive(1, kMiB);
  EXPECT_THAT(Ended(), ElementsAre(1));
}

TEST_F(ConnectionMeterTest, WhatIsDeliveredIsNotHeld) {
  Open(1);
  for (Id call = 10; call < 1000; ++call) {
    Begin(call, 1, 4 * kMiB);
    // Headers, frames and TLS add overhead.
    Receive(1, 200 + kMiB + kMiB / 200);
    meter_.Deliver(call, kMiB);
    meter_.End(call);
  }
  EXPECT_THAT(Ended(), IsEmpty());
  Receive(1, 0);
  EXPECT_EQ(meter_.held(), 0);
  EXPECT_EQ(meter_.open_calls(), 0);
}

// On a stream that stays open for a day, the overhead of gRPC, HTTP/2 and TLS
// on messages, and pings, never add up to an end.
TEST_F(ConnectionMeterTest, OverheadDoesNotAddUpOnStreamsThatStay) {
  Open(1);
  Begin(10, 1, 4 * kMiB, /*one_message=*/false);
  for (int second = 0; second < 86'400; ++second) {
    now_ += seconds(1);
    for (int i = 0; i < 20; ++i) {
      Receive(1, 5 + 9 + 29 + 500 + 39 + 39);
      meter_.Deliver(10, 500);
    }
    Receive(1, 39);  // a ping
  }
  EXPECT_THAT(Ended(), IsEmpty());
  EXPECT_LT(meter_.held(1), 64 << 10);
}

TEST_F(ConnectionMeterTest, DeliveriesDoNotPayForWhatComesLater) {
  Open(1);
  Begin(10, 1, 4 * kMiB, /*one_message=*/false);
  // gRPC delivers bytes before the kernel's counter is read.
  meter_.Deliver(10, kMiB);
  Receive(1, kMiB);
  EXPECT_EQ(meter_.held(1), 0);
  for (int i = 0; i < 1000; ++i) meter_.Deliver(10, 0);
  Receive(1, 0);
  Receive(1, kMiB);
  EXPECT_EQ(meter_.held(1), kMiB - ConnectionMeter::kStreamWindow);
  // Nor does time that passed before.
  Open(2);
  Begin(20, 2, 4096);
  now_ += std::chrono::hours(10);
  Receive(2, kMiB);
  EXPECT_EQ(meter_.held(2), kMiB - 256);
}

TEST_F(ConnectionMeterTest, HeadersWithoutEndAreHeldThoughNoCallBegins) {
  Open(1);
  Receive(1, 64 << 10);
  EXPECT_THAT(Ended(), IsEmpty());
  Receive(1, 64 << 10);
  EXPECT_THAT(Ended(), ElementsAre(1));
}

TEST_F(ConnectionMeterTest, CallsThatAreRefusedHoldNothing) {
  Open(1);
  for (int i = 0; i < 1000; ++i) {
    meter_.Refuse(1, 0);
    Receive(1, 64 << 10);
    EXPECT_THAT(Ended(), IsEmpty());
  }
}

TEST_F(ConnectionMeterTest,
       WhenAllHoldTooMuchTheLargestOfTheGreediestHostEnds) {
  // The greedy host uploads 13 and 14 MiB on two connections with ten calls
  // each, the modest one 5 MiB, which together is the limit.
  Open(1, "greedy");
  Open(2, "greedy");
  Open(3, "modest");
  for (Id call = 10; call < 30; ++call) Begin(call, call % 2 + 1, 4 * kMiB);
  Begin(30, 3, 4 * kMiB);
  Receive(1, 13 * kMiB);
  Receive(2, 14 * kMiB);
  Receive(3, 5 * kMiB);
  EXPECT_THAT(Ended(), IsEmpty());
  Receive(1, kMiB / 2);
  EXPECT_THAT(EndedAtOnce(), ElementsAre(2, 1));
  EXPECT_EQ(meter_.held(3), 5 * kMiB - 256);
  EXPECT_THAT(Ended(), IsEmpty());
}

// gRPC releases an ended connection with a delay. Until then its memory counts,
// so that the same host cannot add more on top.
TEST_F(ConnectionMeterTest, WhatLeavesCountsUntilItsCallsAreOver) {
  Open(1, "greedy");
  Open(2, "greedy");
  Open(3, "modest");
  for (Id id = 1; id <= 3; ++id) {
    for (Id call = 0; call < 4; ++call) Begin(10 * id + call, id, 4 * kMiB);
  }
  Receive(1, 20 * kMiB);
  Receive(2, 10 * kMiB);
  Receive(3, 5 * kMiB);
  EXPECT_THAT(EndedAtOnce(), ElementsAre(1, 2));
  // The modest host's connection is not ended instead.
  meter_.Close(1);
  Open(4, "greedy");
  Begin(40, 4, 4 * kMiB);
  Receive(4, kMiB);
  EXPECT_THAT(EndedAtOnce(), ElementsAre(4));
  for (Id call = 10; call < 14; ++call) meter_.End(call);
  for (Id call = 20; call < 24; ++call) meter_.End(call);
  Open(5, "greedy");
  Begin(50, 5, 4 * kMiB);
  Receive(5, kMiB);
  EXPECT_THAT(EndedAtOnce(), IsEmpty());
}

TEST_F(ConnectionMeterTest, MembersAreNotMetered) {
  Open(1);
  meter_.Trust(1);
  EXPECT_TRUE(meter_.trusted(1));
  Begin(10, 1, 4096);
  Receive(1, 4096 * kMiB);
  EXPECT_THAT(Ended(), IsEmpty());
  EXPECT_EQ(meter_.held(), 0);
}

TEST_F(ConnectionMeterTest, ARequestHasATimeAndAStreamHasNone) {
  Open(1);
  Begin(10, 1, 4096);
  Begin(11, 0, 4096);  // on an unknown connection
  Begin(12, 1, 4096, /*one_message=*/false);
  Begin(13, 1, 4096);
  meter_.Deliver(13, 10);
  now_ += seconds(20);
  EXPECT_THAT(meter_.Judge(now_).late, IsEmpty());
  now_ += milliseconds(1);
  EXPECT_THAT(meter_.Judge(now_).late, ElementsAre(10, 11));
  EXPECT_THAT(meter_.Judge(now_).late, IsEmpty());
  EXPECT_EQ(meter_.open_calls(), 2);
  meter_.End(10);  // may come late
  meter_.End(12);
  meter_.End(13);
  EXPECT_EQ(meter_.open_calls(), 0);
}

// When a client blocks its answer but keeps sending, its bytes count as held
// and the connection ends; the call is late as well.
TEST_F(ConnectionMeterTest, ACallWhoseAnswerIsNotTakenHoldsWhatComes) {
  Open(1);
  BeginBrief(10, 1);
  meter_.Deliver(10, 5);
  meter_.StopReading(10);
  Receive(1, ConnectionMeter::kSlack + 2048);
  // Calls that are answered meanwhile hide nothing.
  BeginBrief(11, 1);
  meter_.Deliver(11, 5);
  meter_.End(11);
  EXPECT_EQ(meter_.brief_calls(1), 1);
  Receive(1, 0);
  EXPECT_THAT(Ended(), ElementsAre(1));
  now_ += seconds(20);
  EXPECT_THAT(meter_.Judge(now_).late, ElementsAre(10));
}

// Bytes within a stream's flow-control window do not count as held: a client
// may send them before the server reads, which may be later.
TEST_F(ConnectionMeterTest, AStreamsWindowIsNotHeldAgainstIt) {
  Open(1);
  Begin(10, 1, 4096, /*one_message=*/false);
  Begin(11, 1, 4096, /*one_message=*/false);
  Receive(1, 2 * ConnectionMeter::kStreamWindow);
  EXPECT_EQ(meter_.held(), 0);
  Receive(1, 512 + 10);
  EXPECT_EQ(meter_.held(), 10);
  meter_.End(10);
  Receive(1, 0);
  EXPECT_EQ(meter_.held(), 10 + ConnectionMeter::kStreamWindow);
}

TEST_F(ConnectionMeterTest, RefusedCallsOfKnownCallersAreForgiven) {
  Open(1);
  Begin(10, 1, 4096, /*one_message=*/false);
  for (int i = 0; i < 1000; ++i) {
    Receive(1, 2048);
    meter_.Refuse(1, 64 << 10);
    EXPECT_THAT(EndedAtOnce(), IsEmpty());
  }
  Receive(1, 0);
  EXPECT_EQ(meter_.held(), 0);
}

TEST_F(ConnectionMeterTest, SaysWhetherThereIsNews) {
  Open(1);
  EXPECT_FALSE(meter_.Receive(1, 0, now_));
  EXPECT_TRUE(meter_.Receive(1, 10, now_));
  EXPECT_FALSE(meter_.Receive(1, 10, now_));
  Begin(10, 1, 4096);
  EXPECT_TRUE(meter_.Receive(1, 10, now_));
  EXPECT_FALSE(meter_.Receive(1, 10, now_));
  EXPECT_FALSE(meter_.Receive(7, 10, now_));
}

}  // namespace
}  // namespace gshard
