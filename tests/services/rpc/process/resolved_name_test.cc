// A name whose address changes, as that of a pod.

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/rpc/client/channel.h"
#include "services/rpc/process/member_client.h"
#include "services/rpc/server/server.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_names.h"

namespace gshard {
namespace {

class IdleMember final : public MemberHandler {
  v1::CommandReply Handle(const v1::Command&) override { return {}; }
  void Interrupt(const std::string&) override {}
  void OnLost() override {}
  v1::Heartbeat Load() override { return {}; }
};

bool Connects(grpc::Channel& channel) {
  return channel.WaitForConnected(std::chrono::system_clock::now() +
                                  std::chrono::seconds(10));
}

TEST(ResolvedNameTest, AProcessThatIsStartedElsewhereIsFoundSoon) {
  TestNames& names = TestNames::Get();
  names.LeadTo("127.0.0.1");
  auto before =
      std::make_unique<ServerShell>(ServerOptions{.address = "127.0.0.1:0"});
  ASSERT_OK(before->Start());
  const std::string port =
      before->address().substr(before->address().rfind(':'));
  ASSERT_OK_AND_ASSIGN(const std::shared_ptr<grpc::Channel> channel,
                       CreateChannel(absl::StrCat("process.test", port)));
  ASSERT_TRUE(Connects(*channel));

  before = nullptr;
  // Until the name has been resolved again, in vain.
  EXPECT_FALSE(channel->WaitForConnected(std::chrono::system_clock::now() +
                                         std::chrono::milliseconds(500)));
  EXPECT_GE(names.Asked(2).size(), 2);
  ServerShell after({.address = absl::StrCat("127.0.0.2", port)});
  ASSERT_OK(after.Start());
  names.LeadTo("127.0.0.2");
  EXPECT_TRUE(Connects(*channel));
}

TEST(ResolvedNameTest, AMemberAsksForItsCoordinatorAtEachAttempt) {
  TestNames::Get().LeadTo("");
  IdleMember handler;
  MemberClient member({.coordinator = "coordinator.test:7000"}, &handler);
  ASSERT_OK(member.Start());
  const auto asked = TestNames::Get().Asked(5);
  EXPECT_LT(asked[4] - asked[3], std::chrono::seconds(3));
}

}  // namespace
}  // namespace gshard
