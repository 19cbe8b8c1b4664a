// Waits for a system to reach a goal.

#ifndef CLIENT_SYSTEM_WAIT_H_
#define CLIENT_SYSTEM_WAIT_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "client/coordinator_client.h"

namespace gshard {

struct SystemGoal {
  int64_t routers = 1;  // at least as many members; leaving ones do not count
  int64_t workers = 1;
  // Served and ready, as NAME (any version) or NAME@VERSION; empty: none.
  std::string model = {};
  // No model is awaited, and no served expert is below its replicas.
  bool full = false;
};

// What `system` lacks for `goal`, e.g. "1 of 2 routers"; empty if nothing.
std::string Missing(const v1::DescribeResponse& system, const SystemGoal& goal);

// Polls the coordinator until the goal is reached, calling `check` before each
// time; its error ends the wait.
//
// Errors: those of `check`; DeadlineExceeded saying what is missing.
absl::Status WaitForSystem(CoordinatorClient& coordinator,
                           const SystemGoal& goal,
                           std::chrono::milliseconds timeout,
                           const std::function<absl::Status()>& check);

}  // namespace gshard

#endif  // CLIENT_SYSTEM_WAIT_H_
