#include "router/training/dense_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/testing/fake_device.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

v1::DenseGroup GlooGroup() {
  v1::DenseGroup group;
  group.set_transport(v1::DenseGroup::GLOO);
  group.set_timeout_ms(60'000);
  group.add_owners();
  group.add_owners();
  return group;
}

// Gloo accepts any peer, so it listens beyond this machine only with
// --insecure.
TEST(NetworkRendezvousTest, GlooListensBeyondThisMachineOnlyIfToldTo) {
  EXPECT_OK(NetworkRendezvous("127.0.0.1")(GlooGroup()).status());
  EXPECT_OK(NetworkRendezvous("localhost")(GlooGroup()).status());
  // An address for documentation, which no machine has, so that gloo cannot
  // listen on it.
  const std::string beyond = "192.0.2.1";
  EXPECT_THAT(NetworkRendezvous(beyond)(GlooGroup()),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr(beyond), HasSubstr("--insecure"))));
  EXPECT_THAT(NetworkRendezvous(beyond, {.insecure = true})(GlooGroup()),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr(beyond), HasSubstr("--reduce_host"),
                             Not(HasSubstr("--insecure")))));
}

// The router's GPU is used: no machine has number 1023, with or without NCCL.
TEST(NetworkRendezvousTest, NcclTakesTheGpuOfTheRouter) {
  v1::DenseGroup group = GlooGroup();
  group.set_transport(v1::DenseGroup::NCCL);
  FakeDevice device;
  device.gpu_number = 1023;
  EXPECT_THAT(
      NetworkRendezvous("127.0.0.1", {.insecure = true}, &device)(group),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("GPU 1023")));
  EXPECT_THAT(NetworkRendezvous("127.0.0.1", {.insecure = true})(group),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("--device=cuda:N")));
}

TEST(NetworkRendezvousTest, HostsAreThoseOfTheAddress) {
  EXPECT_EQ(HostOf("unix:/run/router"), "127.0.0.1");
  EXPECT_EQ(HostOf("127.0.0.1:7000"), "127.0.0.1");
  EXPECT_EQ(HostOf("[::1]:7000"), "::1");
  EXPECT_EQ(HostOf("router-1:7000"), "router-1");
}

}  // namespace
}  // namespace gshard
