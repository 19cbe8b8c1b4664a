#include "services/config/process_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

const char* NoVariables(const char*) { return nullptr; }

TEST(ProcessOptionsTest, AreReadFromFlags) {
  ProcessOptions options;
  Flags flags("worker", "Works.");
  AddMemberFlags(flags, &options);
  AddProcessFlags(flags, &options);
  ASSERT_OK(flags.Parse(
      {"--coordinator=c:1", "--listen=unix:/w", "--metrics_address=0.0.0.0:2",
       "--reflection", "--max_message_mib=8", "--drain_seconds=3",
       "--max_calls=7", "--log_level=error", "--advertise=a:4", "--name=n"},
      NoVariables));
  EXPECT_EQ(options.coordinator, "c:1");
  EXPECT_EQ(options.listen, "unix:/w");
  EXPECT_EQ(options.metrics_address, "0.0.0.0:2");
  EXPECT_TRUE(options.reflection);
  EXPECT_EQ(options.max_message_mib, 8);
  EXPECT_EQ(options.max_calls, 7);
  EXPECT_EQ(options.drain_seconds, 3);
  EXPECT_EQ(options.log_level, "error");
  EXPECT_EQ(AdvertisedAddress(options, "0.0.0.0:9"), "a:4");
  EXPECT_EQ(MemberName(options, "worker", "a:4"), "n");
}

// Members send tensors in pieces of 1 MiB and a header.
TEST(ProcessOptionsTest, MessagesMayBeAsLargeAsThoseOfTensors) {
  ProcessOptions options;
  Flags flags("worker", "Works.");
  AddProcessFlags(flags, &options);
  EXPECT_OK(flags.Parse({"--max_message_mib=2"}, NoVariables));
  EXPECT_THAT(
      flags.Parse({"--max_message_mib=1"}, NoVariables),
      StatusIs(absl::StatusCode::kInvalidArgument,
               AllOf(HasSubstr("--max_message_mib"), HasSubstr("2 to 2047"))));
}

TEST(ProcessOptionsTest, MembersNeedACoordinator) {
  ProcessOptions options;
  Flags flags("worker", "Works.");
  AddMemberFlags(flags, &options);
  EXPECT_THAT(
      flags.Parse({}, NoVariables),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--coordinator")));
}

TEST(ProcessOptionsTest, AddressesAndNamesHaveDefaults) {
  const ProcessOptions options;
  EXPECT_EQ(AdvertisedAddress(options, "10.0.0.1:7002"), "10.0.0.1:7002");
  EXPECT_EQ(AdvertisedAddress(options, "unix:/a/b"), "unix:/a/b");
  for (const char* any : {"0.0.0.0:7002", "[::]:7002"}) {
    EXPECT_THAT(AdvertisedAddress(options, any),
                AllOf(EndsWith(":7002"), Not(StartsWith("0.0.0.0")),
                      Not(StartsWith("["))));
  }
  EXPECT_EQ(MemberName(options, "worker", "unix:/a/w 1"), "worker-w-1");
  EXPECT_THAT(MemberName(options, "router", "host:7001"),
              AllOf(StartsWith("router-"), EndsWith("-7001")));
  EXPECT_EQ(MemberName(options, "w", "unix:" + std::string(200, 'x')).size(),
            128u);
}

}  // namespace
}  // namespace gshard
