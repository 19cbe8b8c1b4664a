// A name whose address changes, as that of a pod. The names that end in ".test"
// lead where this file says.

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <netdb.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "services/base/mutex.h"
#include "services/rpc/client/channel.h"
#include "services/rpc/process/member_client.h"
#include "services/rpc/server/server.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using Clock = std::chrono::steady_clock;

// Has gRPC, which looks at it when it begins, ask getaddrinfo().
[[maybe_unused]] const int chosen =
    setenv("GRPC_DNS_RESOLVER", "native", /*overwrite=*/1);

// The one address of all names.
class TestNames {
 public:
  // Empty: they have none.
  void LeadTo(absl::string_view address) {
    MutexLock lock(mutex_);
    address_ = std::string(address);
    asked_.clear();
  }
  std::string Resolve() {
    MutexLock lock(mutex_);
    asked_.push_back(Clock::now());
    changed_.NotifyAll();
    return address_;
  }
  // When they were resolved since LeadTo(), once that was so many times.
  std::vector<Clock::time_point> Asked(size_t times) {
    MutexLock lock(mutex_);
    changed_.Wait(lock, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return asked_.size() >= times;
    });
    return asked_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::string address_ ABSL_GUARDED_BY(mutex_);
  std::vector<Clock::time_point> asked_ ABSL_GUARDED_BY(mutex_);
};

TestNames& Names() {
  static TestNames& names = *new TestNames;
  return names;
}

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

}  // namespace
}  // namespace gshard

// In place of the C library's.
extern "C" int getaddrinfo(const char* name, const char* service,
                           const addrinfo* hints, addrinfo** found) {
  static const auto library =
      reinterpret_cast<decltype(&getaddrinfo)>(dlsym(RTLD_NEXT, "getaddrinfo"));
  if (name == nullptr || !absl::EndsWith(name, ".test")) {
    return library(name, service, hints, found);
  }
  const std::string address = gshard::Names().Resolve();
  return address.empty() ? EAI_NONAME
                         : library(address.c_str(), service, hints, found);
}

namespace gshard {
namespace {

TEST(ResolvedNameTest, AProcessThatIsStartedElsewhereIsFoundSoon) {
  Names().LeadTo("127.0.0.1");
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
  EXPECT_GE(Names().Asked(2).size(), 2);
  ServerShell after({.address = absl::StrCat("127.0.0.2", port)});
  ASSERT_OK(after.Start());
  Names().LeadTo("127.0.0.2");
  EXPECT_TRUE(Connects(*channel));
}

TEST(ResolvedNameTest, AMemberAsksForItsCoordinatorAtEachAttempt) {
  Names().LeadTo("");
  IdleMember handler;
  MemberClient member({.coordinator = "coordinator.test:7000"}, &handler);
  ASSERT_OK(member.Start());
  const std::vector<Clock::time_point> asked = Names().Asked(5);
  EXPECT_LT(asked[4] - asked[3], std::chrono::seconds(3));
}

}  // namespace
}  // namespace gshard
