#include "services/rpc/server/connection_meter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kMiB = 1 << 20;

// A meter whose connections receive what a test says.
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
  // So many more bytes come.
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
  // Or once there is no patience left.
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

// Who was ended may not come back at once, over and over.
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
  // Once is enough, and it counts no more.
  EXPECT_THAT(Ended(), IsEmpty());
  EXPECT_EQ(meter_.held(), 0);
}

// Messages are there before their calls begin: so many of 64 KiB at once.
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
    // Headers, frames and TLS come on top.
    Receive(1, 200 + kMiB + kMiB / 200);
    meter_.Deliver(call, kMiB);
    meter_.End(call);
  }
  EXPECT_THAT(Ended(), IsEmpty());
  Receive(1, 0);
  EXPECT_EQ(meter_.held(), 0);
  EXPECT_EQ(meter_.open_calls(), 0);
}

// A stream that is open for a day beside a stalled message: what gRPC, HTTP/2
// and TLS add to messages, and their pings, never add up to an end.
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
  // gRPC hands on what the kernel's counter has not been read for.
  meter_.Deliver(10, kMiB);
  Receive(1, kMiB);
  EXPECT_EQ(meter_.held(1), 0);
  for (int i = 0; i < 1000; ++i) meter_.Deliver(10, 0);
  Receive(1, 0);
  Receive(1, kMiB);
  EXPECT_EQ(meter_.held(1), kMiB - ConnectionMeter::kStreamWindow);
  // Nor does time that passes before.
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
  // Ten uploads of 3 MiB from two connections of one host, one of 5 MiB from
  // another.
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

// gRPC lets go of a connection when it gets to it; until then its memory is
// there, and more of the same host would come on top.
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
  // The modest one pays for nobody.
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
  Begin(11, 0, 4096);  // not of a connection that is known
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

// The client lets the server send nothing, and sends on.
TEST_F(ConnectionMeterTest, ACallWhoseAnswerIsNotTakenHoldsWhatComes) {
  Open(1);
  BeginBrief(10, 1);
  meter_.Deliver(10, 5);
  meter_.StopReading(10);
  Receive(1, ConnectionMeter::kSlack + 2048);
  // Others that are answered hide nothing.
  BeginBrief(11, 1);
  meter_.Deliver(11, 5);
  meter_.End(11);
  EXPECT_EQ(meter_.brief_calls(1), 1);
  Receive(1, 0);
  EXPECT_THAT(Ended(), ElementsAre(1));
  now_ += seconds(20);
  EXPECT_THAT(meter_.Judge(now_).late, ElementsAre(10));
}

// What one may send before the server reads it, which it may put off.
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
