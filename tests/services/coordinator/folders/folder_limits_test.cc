#include "services/coordinator/folders/folder_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>

#include "absl/strings/str_cat.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

Caller Of(const std::string& folder) {
  return {"a", {{Role::kTrain, folder}, {Role::kTranslate, "m-*"}}};
}

TEST(FolderLimitsTest, FindsWhatTheDiskSaysEachTime) {
  std::atomic<int> links{0};
  FolderLimits limits([&](absl::string_view path) {
    return absl::StrCat("/disk", ++links, path);
  });
  EXPECT_EQ(limits.Resolve(Of("/a")), Of("/disk1/a"));
  EXPECT_EQ(limits.Resolve(Of("/a")), Of("/disk2/a"));
}

TEST(FolderLimitsTest, WhoHasNoFolderAsksNoDisk) {
  FolderLimits limits([](absl::string_view) -> absl::StatusOr<std::string> {
    ADD_FAILURE();
    return absl::UnavailableError("");
  });
  EXPECT_EQ(limits.Resolve({"ops", AllGrants()}).grants, AllGrants());
}

TEST(FolderLimitsTest, NobodyWaitsForADiskThatHangs) {
  std::promise<void> mounted;
  auto is_mounted = mounted.get_future().share();
  std::atomic<bool> hangs{false};
  FolderLimits limits([&](absl::string_view path) {
    if (hangs) is_mounted.wait();
    return absl::StrCat("/disk", path);
  });
  EXPECT_EQ(limits.Resolve(Of("/a")), Of("/disk/a"));
  hangs = true;
  EXPECT_EQ(limits.Resolve(Of("/a")), Of("/disk/a"));
  EXPECT_EQ(limits.Resolve(Of("/b")), Of("/b"));
  mounted.set_value();
  while (!(limits.Resolve(Of("/b")) == Of("/disk/b"))) {
    std::this_thread::yield();
  }
}

}  // namespace
}  // namespace gshard
