#include "services/base/memory_limit.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace gshard {
namespace {

// "max" and numbers that are none are no limit.
int64_t ReadLimit(const std::string& path) {
  std::ifstream file(path);
  std::string text;
  int64_t bytes = 0;
  if (!std::getline(file, text) || !absl::SimpleAtoi(text, &bytes) ||
      bytes <= 0) {
    return INT64_MAX;
  }
  return bytes;
}

// Of the group `path`, such as "/a/b", and of all that it is in. Where a
// container sees its own group as the root, only that is there.
int64_t LeastLimit(const std::string& mount, std::string path,
                   const char* file) {
  int64_t least = ReadLimit(absl::StrCat(mount, "/", file));
  while (path.size() > 1) {
    least = std::min(least, ReadLimit(absl::StrCat(mount, path, "/", file)));
    path.resize(path.rfind('/'));
  }
  return least;
}

}  // namespace

int64_t ControlGroupMemoryLimit(const std::string& root) {
  const std::string mount = root + "/sys/fs/cgroup";
  int64_t least = INT64_MAX;
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    // "number:controllers:path"; version 2 has number 0 and no controllers.
    const std::vector<std::string> parts =
        absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3 || parts[2].empty() || parts[2][0] != '/') continue;
    if (parts[0] == "0" && parts[1].empty()) {
      least = std::min(least, LeastLimit(mount, parts[2], "memory.max"));
    }
    for (const absl::string_view controller : absl::StrSplit(parts[1], ',')) {
      if (controller != "memory") continue;
      least = std::min(least, LeastLimit(mount + "/memory", parts[2],
                                         "memory.limit_in_bytes"));
    }
  }
  return least;
}

int64_t MemoryLimit() {
  const int64_t limit = ControlGroupMemoryLimit();
  const int64_t pages = sysconf(_SC_PHYS_PAGES);
  const int64_t page = sysconf(_SC_PAGESIZE);
  return pages > 0 && page > 0 ? std::min(limit, pages * page) : limit;
}

}  // namespace gshard
