// What all meetings promise: members come together by addresses that travel
// by hand, exchange as any group, and nobody waits for one that is gone.

#include "services/collectives/meeting.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "services/base/status_macros.h"
#include "services/collectives/collectives.h"
#include "services/collectives/gloo_meeting.h"
#include "services/collectives/local_meeting.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using std::chrono::milliseconds;
using ::testing::_;
using ::testing::HasSubstr;
using ::testing::SizeIs;

using Meetings = std::vector<std::unique_ptr<Meeting>>;

struct Kind {
  std::string name;
  std::function<Meetings(int size)> make;
};

Meetings LocalMeetings(int size) {
  Meetings meetings;
  for (auto& world : LocalWorlds(size)) {
    meetings.push_back(std::make_unique<LocalMeeting>(std::move(world)));
  }
  return meetings;
}

Meetings GlooMeetings(int size, milliseconds timeout) {
  Meetings meetings;
  for (int rank = 0; rank < size; ++rank) {
    GlooMeetingOptions options;
    options.rank = rank;
    options.size = size;
    options.timeout = timeout;
    auto meeting = GlooMeeting::Create(options);
    EXPECT_OK(meeting);
    meetings.push_back(*std::move(meeting));
  }
  return meetings;
}

// What the members have for `rank`.
std::vector<std::string> AddressesFor(const Meetings& meetings, size_t rank) {
  std::vector<std::string> addresses;
  for (const auto& meeting : meetings) {
    EXPECT_LE(meeting->addresses()[rank].size(), kMaxMeetingAddressBytes);
    addresses.push_back(meeting->addresses()[rank]);
  }
  return addresses;
}

// Runs all members, each on a thread of its own; statuses by rank.
std::vector<absl::Status> Meet(
    Meetings& meetings,
    const std::function<absl::Status(int rank, Communicator& comm)>& member) {
  std::vector<absl::Status> statuses(meetings.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < meetings.size(); ++rank) {
    threads.emplace_back([&, rank, addresses = AddressesFor(meetings, rank)] {
      const auto group = meetings[rank]->Join(addresses);
      statuses[rank] =
          group.ok() ? member(static_cast<int>(rank), **group) : group.status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

absl::Status AddOne(Communicator& comm) {
  ASSIGN_OR_RETURN(const Tensor sum,
                   AllReduce(comm, Tensor::Floats({1}, {1.0f})));
  EXPECT_EQ(sum.f32()[0], static_cast<float>(comm.size()));
  return absl::OkStatus();
}

class MeetingTest : public ::testing::TestWithParam<Kind> {};

TEST_P(MeetingTest, MembersMeetAndExchange) {
  for (const int size : {1, 2, 4}) {
    Meetings meetings = GetParam().make(size);
    for (const auto& status :
         Meet(meetings, [&](int rank, Communicator&comm) -> absl::Status {
           EXPECT_EQ(comm.rank(), rank);
           EXPECT_EQ(comm.size(), size);
           return AddOne(comm);
         })) {
      EXPECT_OK(status);
    }
  }
}

// Rank 1 comes to the second exchange when rank 0 has stopped waiting for it.
TEST_P(MeetingTest, AbortWakesAMemberThatWaits) {
  Meetings meetings = GetParam().make(2);
  std::promise<void> met, ended;
  std::thread aborting([&] {
    met.get_future().wait();
    meetings[0]->Abort();
  });
  const auto statuses =
      Meet(meetings, [&](int rank, Communicator& comm) -> absl::Status {
        RETURN_IF_ERROR(AddOne(comm));
        if (rank == 1) {
          ended.get_future().wait();
          return AddOne(comm);
        }
        met.set_value();
        const absl::Status status = AddOne(comm);
        ended.set_value();
        return status;
      });
  aborting.join();
  EXPECT_THAT(statuses[0], StatusIs(absl::StatusCode::kCancelled, _));
  EXPECT_THAT(statuses[1], StatusIs(absl::StatusCode::kUnavailable, _));
}

TEST_P(MeetingTest, NothingIsExchangedAfterAnAbort) {
  Meetings meetings = GetParam().make(2);
  const auto statuses =
      Meet(meetings, [&](int rank, Communicator& comm) -> absl::Status {
        if (rank == 0) meetings[0]->Abort();
        return AddOne(comm);
      });
  EXPECT_THAT(statuses[0], StatusIs(absl::StatusCode::kCancelled, _));
  EXPECT_THAT(statuses[1], StatusIs(absl::StatusCode::kUnavailable, _));
}

TEST_P(MeetingTest, AMemberThatGoesIsMissed) {
  Meetings meetings = GetParam().make(3);
  const auto statuses =
      Meet(meetings, [&](int rank, Communicator& comm) -> absl::Status {
        RETURN_IF_ERROR(AddOne(comm));
        if (rank == 2) {
          meetings[2] = nullptr;
          return absl::OkStatus();
        }
        return AddOne(comm);
      });
  EXPECT_THAT(statuses[0], StatusIs(absl::StatusCode::kUnavailable, _));
  EXPECT_THAT(statuses[1], StatusIs(absl::StatusCode::kUnavailable, _));
}

TEST_P(MeetingTest, AddressesAreOnePerMember) {
  Meetings meetings = GetParam().make(2);
  EXPECT_THAT(meetings[0]->addresses(), SizeIs(2));
  EXPECT_THAT(meetings[0]->Join({"", "", ""}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("of 2 members, got 3")));
}

INSTANTIATE_TEST_SUITE_P(, MeetingTest,
                         ::testing::Values(Kind{"Local", LocalMeetings},
                                           Kind{"Gloo",
                                                [](int size) {
                                                  return GlooMeetings(
                                                      size,
                                                      std::chrono::seconds(60));
                                                }}),
                         [](const auto& info) { return info.param.name; });

TEST(GlooMeetingTest, AddressesAreChecked) {
  Meetings meetings = GlooMeetings(2, milliseconds(1000));
  std::vector<std::string> addresses = AddressesFor(meetings, 0);
  const std::string good = addresses[1];
  for (const std::string& bad :
       {std::string(), std::string("\x02"), good + good, good.substr(1),
        std::string(good.size(), '\x7f')}) {
    addresses[1] = bad;
    EXPECT_THAT(meetings[0]->Join(addresses),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("address of member 1")));
  }
}

// The port of rank 1 has been closed: it is gone before the two have met.
TEST(GlooMeetingTest, AMemberThatIsGoneBeforeIsMissed) {
  for (const size_t rank : {0, 1}) {
    Meetings meetings = GlooMeetings(2, milliseconds(200));
    const auto addresses = AddressesFor(meetings, rank);
    meetings[1 - rank] = nullptr;
    const absl::Status status = meetings[rank]->Join(addresses).status();
    EXPECT_TRUE(absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status))
        << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("joining"));
  }
}

TEST(GlooMeetingTest, AbortEndsTheWaitForMembers) {
  for (const size_t rank : {0, 1}) {
    Meetings meetings = GlooMeetings(2, std::chrono::seconds(60));
    // The other one lives, and never joins.
    const auto addresses = AddressesFor(meetings, rank);
    auto joined = std::async(std::launch::async, [&] {
      auto group = meetings[rank]->Join(addresses);
      if (!group.ok()) return group.status();
      return AddOne(**group);  // who connects may think that it has met
    });
    meetings[rank]->Abort();
    EXPECT_THAT(joined.get(), StatusIs(absl::StatusCode::kCancelled, _));
  }
}

TEST(GlooMeetingTest, CreateChecksItsOptions) {
  GlooMeetingOptions options;
  options.rank = 2;
  options.size = 2;
  EXPECT_THAT(GlooMeeting::Create(options),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("got rank 2 of 2")));
  options.rank = 0;
  options.timeout = milliseconds(0);
  EXPECT_THAT(
      GlooMeeting::Create(options),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("timeout")));
  options.timeout = milliseconds(1);
  options.host = "192.0.2.1";  // reserved for documentation
  EXPECT_THAT(GlooMeeting::Create(options),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("host '192.0.2.1'")));
}

}  // namespace
}  // namespace gshard
