// How much of the machine this process may use.

#ifndef SERVICES_BASE_MACHINE_LIMITS_H_
#define SERVICES_BASE_MACHINE_LIMITS_H_

#include <cstdint>
#include <string>

namespace gshard {

// Bytes: the machine's memory, or the container's limit if that is less.
int64_t MemoryLimit();

// CPUs, at least 1: those that the process may run on, or the container's share
// of their time, rounded up, if that is less.
int CpuLimit();

// The least limits that control groups of either version set for this process
// and for the groups around its own; INT64_MAX bytes and infinitely many CPUs
// without one. Files are those of a system at `root`, "/proc/self/cgroup" and
// below "/sys/fs/cgroup"; what cannot be read is no limit.
int64_t ControlGroupMemoryLimit(const std::string& root = "");
double ControlGroupCpuLimit(const std::string& root = "");

}  // namespace gshard

#endif  // SERVICES_BASE_MACHINE_LIMITS_H_
