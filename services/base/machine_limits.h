// The resources of the machine that this process may use.

#ifndef SERVICES_BASE_MACHINE_LIMITS_H_
#define SERVICES_BASE_MACHINE_LIMITS_H_

#include <cstdint>
#include <string>

namespace gshard {

// In bytes: the machine's memory, or the container's limit if that is lower.
int64_t MemoryLimit();

// CPUs, at least 1: those in the process's affinity mask, or the container's
// CPU quota, rounded up, if that is lower.
int CpuLimit();

// The lowest limits that control groups (v1 or v2) set for this process's group
// and its ancestors; INT64_MAX bytes and infinitely many CPUs without one.
// Reads "/proc/self/cgroup" and files below "/sys/fs/cgroup", relative to
// `root`; an unreadable file is no limit.
int64_t ControlGroupMemoryLimit(const std::string& root = "");
double ControlGroupCpuLimit(const std::string& root = "");

}  // namespace gshard

#endif  // SERVICES_BASE_MACHINE_LIMITS_H_
