// How much memory this process may have.

#ifndef SERVICES_BASE_MEMORY_LIMIT_H_
#define SERVICES_BASE_MEMORY_LIMIT_H_

#include <cstdint>
#include <string>

namespace gshard {

// Bytes: the machine's memory, or the container's limit if that is less.
int64_t MemoryLimit();

// The least limit that control groups of either version set for this process
// and for the groups around its own; INT64_MAX without one. Files are those of
// a system at `root`, "/proc/self/cgroup" and below "/sys/fs/cgroup"; what
// cannot be read is no limit.
int64_t ControlGroupMemoryLimit(const std::string& root = "");

}  // namespace gshard

#endif  // SERVICES_BASE_MEMORY_LIMIT_H_
