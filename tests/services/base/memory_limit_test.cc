#include "services/base/memory_limit.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace gshard {
namespace {

// The files of a made-up system.
class MemoryLimitTest : public ::testing::Test {
 protected:
  ~MemoryLimitTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  }
  int64_t Limit() const { return ControlGroupMemoryLimit(root_); }

  const std::string root_ =
      testing::TempDir() + "memory_limit_" + std::to_string(getpid());
};

TEST_F(MemoryLimitTest, IsTheLeastOfTheGroupsAround) {
  Write("/proc/self/cgroup", "0::/pods/this");
  EXPECT_EQ(Limit(), INT64_MAX);
  Write("/sys/fs/cgroup/pods/memory.max", "3000");
  Write("/sys/fs/cgroup/pods/this/memory.max", "max");
  EXPECT_EQ(Limit(), 3000);
  Write("/sys/fs/cgroup/pods/this/memory.max", "2000");
  EXPECT_EQ(Limit(), 2000);
  Write("/sys/fs/cgroup/pods/memory.max", "1000");
  EXPECT_EQ(Limit(), 1000);
}

// A container may see the path that the machine knows, or none.
TEST_F(MemoryLimitTest, AContainersGroupIsItsRoot) {
  Write("/sys/fs/cgroup/memory.max", "2000");
  Write("/proc/self/cgroup", "0::/");
  EXPECT_EQ(Limit(), 2000);
  Write("/proc/self/cgroup", "0::/docker/4711");
  EXPECT_EQ(Limit(), 2000);
}

TEST_F(MemoryLimitTest, TheFirstVersionHasAFolderForMemory) {
  Write("/proc/self/cgroup", "5:cpu,cpuacct:/a\n4:hugetlb,memory:/b\n0::/");
  Write("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1000");
  EXPECT_EQ(Limit(), INT64_MAX);
  Write("/sys/fs/cgroup/memory/b/memory.limit_in_bytes", "2000");
  EXPECT_EQ(Limit(), 2000);
}

TEST_F(MemoryLimitTest, NonsenseIsNoLimit) {
  EXPECT_EQ(Limit(), INT64_MAX);  // no file at all
  for (const char* groups : {"", "0", "0::", "0::b", "::/", "memory"}) {
    Write("/proc/self/cgroup", groups);
    EXPECT_EQ(Limit(), INT64_MAX) << groups;
  }
  Write("/proc/self/cgroup", "0::/");
  for (const char* limit :
       {"", "-1", "0", "1000 bytes", "99999999999999999999"}) {
    Write("/sys/fs/cgroup/memory.max", limit);
    EXPECT_EQ(Limit(), INT64_MAX) << limit;
  }
}

TEST_F(MemoryLimitTest, IsNoMoreThanTheMachineHas) {
  EXPECT_GT(MemoryLimit(), 1 << 20);
  EXPECT_LE(MemoryLimit(), int64_t{sysconf(_SC_PHYS_PAGES)} *
                               sysconf(_SC_PAGESIZE));
}

}  // namespace
}  // namespace gshard
