#include "services/base/machine_limits.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace gshard {
namespace {

// The words of a file's first line.
std::vector<std::string> Words(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return absl::StrSplit(line, ' ');
}

// "max" and anything that is not a number mean no limit.
int64_t ToLimit(const std::vector<std::string>& words) {
  int64_t limit = 0;
  const bool is_limit =
      words.size() == 1 && absl::SimpleAtoi(words[0], &limit) && limit > 0;
  return is_limit ? limit : INT64_MAX;
}

// Parses CPU microseconds per period, and the period in microseconds.
double ToCpus(const std::vector<std::string>& words) {
  int64_t quota = 0, period = 0;
  const bool is_limit = words.size() == 2 &&
                        absl::SimpleAtoi(words[0], &quota) && quota > 0 &&
                        absl::SimpleAtoi(words[1], &period) && period > 0;
  return is_limit ? static_cast<double>(quota) / static_cast<double>(period)
                  : std::numeric_limits<double>::infinity();
}

// Calls visit(folder, version) for the folder of this process's control group
// of a controller and for those of its ancestors. In a container that sees its
// own group as the root, only that one exists.
template <typename Visit>
void ForEachGroup(const std::string& root, absl::string_view controller,
                  const Visit& visit) {
  const std::string mount = root + "/sys/fs/cgroup";
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    // "number:controllers:path", with a path like "/a/b"; version 2 has number
    // 0 and no controllers.
    const std::vector<std::string> parts =
        absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3 || parts[2].empty() || parts[2][0] != '/') continue;
    const std::vector<std::string> controllers =
        absl::StrSplit(parts[1], ',', absl::SkipEmpty());
    const int version = parts[0] == "0" && controllers.empty() ? 2 : 1;
    if (version == 1 && std::find(controllers.begin(), controllers.end(),
                                  controller) == controllers.end()) {
      continue;
    }
    const std::string folder =
        version == 2 ? mount : absl::StrCat(mount, "/", controller);
    visit(folder, version);
    for (std::string path = parts[2]; path.size() > 1;
         path.resize(path.rfind('/'))) {
      visit(folder + path, version);
    }
  }
}

}  // namespace

int64_t ControlGroupMemoryLimit(const std::string& root) {
  int64_t least = INT64_MAX;
  ForEachGroup(root, "memory", [&](const std::string& folder, int version) {
    least = std::min(
        least,
        ToLimit(Words(absl::StrCat(
            folder, version == 2 ? "/memory.max" : "/memory.limit_in_bytes"))));
  });
  return least;
}

double ControlGroupCpuLimit(const std::string& root) {
  double least = std::numeric_limits<double>::infinity();
  ForEachGroup(root, "cpu", [&](const std::string& folder, int version) {
    std::vector<std::string> words;
    if (version == 2) {
      words = Words(folder + "/cpu.max");
    } else {
      words = {Words(folder + "/cpu.cfs_quota_us")[0],
               Words(folder + "/cpu.cfs_period_us")[0]};
    }
    least = std::min(least, ToCpus(words));
  });
  return least;
}

int64_t MemoryLimit() {
  const int64_t limit = ControlGroupMemoryLimit();
  const int64_t pages = sysconf(_SC_PHYS_PAGES);
  const int64_t page = sysconf(_SC_PAGESIZE);
  return pages > 0 && page > 0 ? std::min(limit, pages * page) : limit;
}

int CpuLimit() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const int cpus = sched_getaffinity(0, sizeof(set), &set) == 0
                       ? CPU_COUNT(&set)
                       : static_cast<int>(std::thread::hardware_concurrency());
  return static_cast<int>(
      std::max(1.0, std::min<double>(cpus, std::ceil(ControlGroupCpuLimit()))));
}

}  // namespace gshard
