#include "services/base/machine_limits.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

namespace gshard {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Reads limits from a fake file system of its own.
class MachineLimitsTest : public ::testing::Test {
 protected:
  ~MachineLimitsTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  }
  int64_t Limit() const { return ControlGroupMemoryLimit(root_); }
  double Cpus() const { return ControlGroupCpuLimit(root_); }

  const std::string root_ =
      testing::TempDir() + "machine_limits_" + std::to_string(getpid());
};

TEST_F(MachineLimitsTest, MemoryIsTheLeastOfTheGroupsAround) {
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

// A container's group path is the host's or "/"; either means the root.
TEST_F(MachineLimitsTest, AContainersGroupIsItsRoot) {
  Write("/sys/fs/cgroup/memory.max", "2000");
  Write("/proc/self/cgroup", "0::/");
  EXPECT_EQ(Limit(), 2000);
  Write("/proc/self/cgroup", "0::/docker/4711");
  EXPECT_EQ(Limit(), 2000);
}

TEST_F(MachineLimitsTest, TheFirstVersionHasAFolderOfEachController) {
  Write("/proc/self/cgroup", "5:cpu,cpuacct:/a\n4:hugetlb,memory:/b\n0::/");
  Write("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1000");
  EXPECT_EQ(Limit(), INT64_MAX);
  Write("/sys/fs/cgroup/memory/b/memory.limit_in_bytes", "2000");
  EXPECT_EQ(Limit(), 2000);
}

TEST_F(MachineLimitsTest, CpusAreTheLeastShareOfTheGroupsAround) {
  Write("/proc/self/cgroup", "0::/pods/this");
  EXPECT_EQ(Cpus(), kInfinity);
  Write("/sys/fs/cgroup/pods/cpu.max", "150000 100000");
  Write("/sys/fs/cgroup/pods/this/cpu.max", "max 100000");
  EXPECT_EQ(Cpus(), 1.5);
  Write("/sys/fs/cgroup/pods/this/cpu.max", "50000 100000");
  EXPECT_EQ(Cpus(), 0.5);
  Write("/proc/self/cgroup", "5:cpu,cpuacct:/a\n0::/");
  Write("/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "-1");
  Write("/sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000");
  EXPECT_EQ(Cpus(), kInfinity);
  Write("/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "200000");
  EXPECT_EQ(Cpus(), 2.0);
}

TEST_F(MachineLimitsTest, NonsenseIsNoLimit) {
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
  for (const char* limit : {"", "1000", "0 100", "1 0", "-1 100", "1 2 3"}) {
    Write("/sys/fs/cgroup/cpu.max", limit);
    EXPECT_EQ(Cpus(), kInfinity) << limit;
  }
}

TEST_F(MachineLimitsTest, AreNoMoreThanTheMachineHas) {
  EXPECT_GT(MemoryLimit(), 1 << 20);
  EXPECT_LE(MemoryLimit(),
            int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE));
  EXPECT_GE(CpuLimit(), 1);
  EXPECT_LE(CpuLimit(), sysconf(_SC_NPROCESSORS_CONF));
}

}  // namespace
}  // namespace gshard
