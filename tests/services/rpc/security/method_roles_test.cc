#include "services/rpc/security/method_roles.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

// The methods of all services, parsed from the files in proto/.
std::set<std::string> MethodsInProto() {
  static const std::regex kLine(
      R"(^(package|service|  rpc) (\S+?)(;| \{|\(.*))");
  std::set<std::string> methods;
  for (const auto& entry :
       std::filesystem::directory_iterator("proto/gshard/v1")) {
    std::ifstream file(entry.path());
    std::string package, service, line;
    std::smatch match;
    while (std::getline(file, line)) {
      if (!std::regex_search(line, match, kLine)) continue;
      if (match[1] == "package") package = match[2];
      if (match[1] == "service") service = match[2];
      if (match[1] == "  rpc") {
        methods.insert(
            absl::StrCat("/", package, ".", service, "/", match[2].str()));
      }
    }
  }
  return methods;
}

TEST(MethodRolesTest, EveryMethodOfOursHasRoles) {
  const std::set<std::string> methods = MethodsInProto();
  for (const char* known : {"/gshard.v1.TranslationService/Translate",
                            "/gshard.v1.ExpertWorkerService/Run",
                            "/gshard.v1.CoordinatorService/PullParameters"}) {
    EXPECT_THAT(methods, Contains(known));
  }
  for (const std::string& method : methods) {
    const MethodAccess* const access = FindMethodAccess(method);
    ASSERT_NE(access, nullptr)
        << method << " has no line in services/rpc/security/method_roles.cc";
    EXPECT_FALSE(access->open) << method;
    EXPECT_FALSE(access->roles.empty()) << method;
  }
}

TEST(MethodRolesTest, TheTableHasNoOtherMethodsOfOurs) {
  const std::set<std::string> methods = MethodsInProto();
  for (const std::string& method : MethodsWithAccess()) {
    if (absl::StartsWith(method, "/gshard.")) {
      EXPECT_THAT(methods, Contains(method));
    }
  }
}

TEST(MethodRolesTest, OnlyHealthIsOpen) {
  for (const std::string& method : MethodsWithAccess()) {
    EXPECT_EQ(FindMethodAccess(method)->open,
              absl::StartsWith(method, "/grpc.health.v1.Health/"))
        << method;
  }
  EXPECT_EQ(FindMethodAccess("/grpc.channelz.v1.Channelz/GetServers"), nullptr);
}

TEST(MethodRolesTest, RolesHaveNames) {
  for (const Role role : AllRoles()) {
    ASSERT_OK_AND_ASSIGN(const Role parsed, ParseRole(RoleName(role)));
    EXPECT_EQ(parsed, role);
  }
  EXPECT_THAT(ParseRole("root"), StatusIs(absl::StatusCode::kInvalidArgument,
                                          HasSubstr("'root'")));
}

}  // namespace
}  // namespace gshard
