// Tests every Rendezvous: members meet by addresses that the test passes on,
// exchange like any group, and do not wait for a member that is gone.

#include "services/collectives/rendezvous.h"

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
#include "services/collectives/gloo_rendezvous.h"
#include "tests/services/collectives/local_rendezvous.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using std::chrono::milliseconds;
using ::testing::_;
using ::testing::HasSubstr;
using ::testing::SizeIs;

using RendezvousList = std::vector<std::unique_ptr<Rendezvous>>;

struct Kind {
  std::string name;
  std::function<RendezvousList(int size)> make;
};

RendezvousList LocalRendezvousList(int size) {
  RendezvousList rendezvous_list;
  for (auto& world : LocalWorlds(size)) {
    rendezvous_list.push_back(
        std::make_unique<LocalRendezvous>(std::move(world)));
  }
  return rendezvous_list;
}

RendezvousList GlooRendezvousList(int size, milliseconds timeout) {
  RendezvousList rendezvous_list;
  for (int rank = 0; rank < size; ++rank) {
    GlooRendezvousOptions options;
    options.rank = rank;
    options.size = size;
    options.timeout = timeout;
    auto rendezvous = GlooRendezvous::Create(options);
    EXPECT_OK(rendezvous);
    rendezvous_list.push_back(*std::move(rendezvous));
  }
  return rendezvous_list;
}

// The members' addresses for `rank`.
std::vector<std::string> AddressesFor(const RendezvousList& rendezvous_list,
                                      size_t rank) {
  std::vector<std::string> addresses;
  for (const auto& rendezvous : rendezvous_list) {
    EXPECT_LE(rendezvous->addresses()[rank].size(), kMaxRendezvousAddressBytes);
    addresses.push_back(rendezvous->addresses()[rank]);
  }
  return addresses;
}

// Runs each member on a thread of its own; returns statuses by rank.
std::vector<absl::Status> Meet(
    RendezvousList& rendezvous_list,
    const std::function<absl::Status(int rank, Communicator& comm)>& member) {
  std::vector<absl::Status> statuses(rendezvous_list.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < rendezvous_list.size(); ++rank) {
    threads.emplace_back(
        [&, rank, addresses = AddressesFor(rendezvous_list, rank)] {
          const auto group = rendezvous_list[rank]->Join(addresses);
          statuses[rank] = group.ok() ? member(static_cast<int>(rank), **group)
                                      : group.status();
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

class RendezvousTest : public ::testing::TestWithParam<Kind> {};

TEST_P(RendezvousTest, MembersMeetAndExchange) {
  for (const int size : {1, 2, 4}) {
    RendezvousList rendezvous_list = GetParam().make(size);
    for (const auto& status : Meet(
             rendezvous_list, [&](int rank, Communicator&comm) -> absl::Status {
               EXPECT_EQ(comm.rank(), rank);
               EXPECT_EQ(comm.size(), size);
               return AddOne(comm);
             })) {
      EXPECT_OK(status);
    }
  }
}

// Abort() ends the wait of rank 0; rank 1, which enters the exchange only after
// that, fails as well.
TEST_P(RendezvousTest, AbortWakesAMemberThatWaits) {
  RendezvousList rendezvous_list = GetParam().make(2);
  std::promise<void> met, ended;
  std::thread aborting([&] {
    met.get_future().wait();
    rendezvous_list[0]->Abort();
  });
  const auto statuses =
      Meet(rendezvous_list, [&](int rank, Communicator& comm) -> absl::Status {
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

TEST_P(RendezvousTest, NothingIsExchangedAfterAnAbort) {
  RendezvousList rendezvous_list = GetParam().make(2);
  const auto statuses =
      Meet(rendezvous_list, [&](int rank, Communicator& comm) -> absl::Status {
        if (rank == 0) rendezvous_list[0]->Abort();
        return AddOne(comm);
      });
  EXPECT_THAT(statuses[0], StatusIs(absl::StatusCode::kCancelled, _));
  EXPECT_THAT(statuses[1], StatusIs(absl::StatusCode::kUnavailable, _));
}

TEST_P(RendezvousTest, AMemberThatGoesIsMissed) {
  RendezvousList rendezvous_list = GetParam().make(3);
  const auto statuses =
      Meet(rendezvous_list, [&](int rank, Communicator& comm) -> absl::Status {
        RETURN_IF_ERROR(AddOne(comm));
        if (rank == 2) {
          rendezvous_list[2] = nullptr;
          return absl::OkStatus();
        }
        return AddOne(comm);
      });
  EXPECT_THAT(statuses[0], StatusIs(absl::StatusCode::kUnavailable, _));
  EXPECT_THAT(statuses[1], StatusIs(absl::StatusCode::kUnavailable, _));
}

TEST_P(RendezvousTest, AddressesAreOnePerMember) {
  RendezvousList rendezvous_list = GetParam().make(2);
  EXPECT_THAT(rendezvous_list[0]->addresses(), SizeIs(2));
  EXPECT_THAT(rendezvous_list[0]->Join({"", "", ""}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("of 2 members, got 3")));
}

INSTANTIATE_TEST_SUITE_P(, RendezvousTest,
                         ::testing::Values(Kind{"Local", LocalRendezvousList},
                                           Kind{"Gloo",
                                                [](int size) {
                                                  return GlooRendezvousList(
                                                      size,
                                                      std::chrono::seconds(60));
                                                }}),
                         [](const auto& info) { return info.param.name; });

TEST(GlooRendezvousTest, AddressesAreChecked) {
  RendezvousList rendezvous_list = GlooRendezvousList(2, milliseconds(1000));
  std::vector<std::string> addresses = AddressesFor(rendezvous_list, 0);
  const std::string good = addresses[1];
  for (const std::string& bad :
       {std::string(), std::string("\x02"), good + good, good.substr(1),
        std::string(good.size(), '\x7f')}) {
    addresses[1] = bad;
    EXPECT_THAT(rendezvous_list[0]->Join(addresses),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("address of member 1")));
  }
}

// A rank fails to join if the other one closed its port before they met.
TEST(GlooRendezvousTest, AMemberThatIsGoneBeforeIsMissed) {
  for (const size_t rank : {0, 1}) {
    RendezvousList rendezvous_list = GlooRendezvousList(2, milliseconds(200));
    const auto addresses = AddressesFor(rendezvous_list, rank);
    rendezvous_list[1 - rank] = nullptr;
    const absl::Status status = rendezvous_list[rank]->Join(addresses).status();
    EXPECT_TRUE(absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status))
        << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("joining"));
  }
}

TEST(GlooRendezvousTest, AbortEndsTheWaitForMembers) {
  for (const size_t rank : {0, 1}) {
    RendezvousList rendezvous_list =
        GlooRendezvousList(2, std::chrono::seconds(60));
    // The other rank is alive but never joins.
    const auto addresses = AddressesFor(rendezvous_list, rank);
    auto joined = std::async(std::launch::async, [&] {
      auto group = rendezvous_list[rank]->Join(addresses);
      if (!group.ok()) return group.status();
      return AddOne(**group);  // a rank that connects may have joined
    });
    rendezvous_list[rank]->Abort();
    EXPECT_THAT(joined.get(), StatusIs(absl::StatusCode::kCancelled, _));
  }
}

TEST(GlooRendezvousTest, CreateChecksItsOptions) {
  GlooRendezvousOptions options;
  options.rank = 2;
  options.size = 2;
  EXPECT_THAT(GlooRendezvous::Create(options),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("got rank 2 of 2")));
  options.rank = 0;
  options.timeout = milliseconds(0);
  EXPECT_THAT(
      GlooRendezvous::Create(options),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("timeout")));
  options.timeout = milliseconds(1);
  options.host = "192.0.2.1";  // reserved for documentation
  EXPECT_THAT(GlooRendezvous::Create(options),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("host '192.0.2.1'")));
}

}  // namespace
}  // namespace gshard
