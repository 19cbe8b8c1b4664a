#include "client/system_wait.h"

#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/base/status_macros.h"

namespace gshard {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kPause{100};
constexpr milliseconds kCallTimeout{2'000};

int64_t Count(const v1::DescribeResponse& system, v1::MemberRole role) {
  int64_t count = 0;
  for (const v1::Member& member : system.members()) {
    // A router that leaves gets no more work.
    const bool is_gone =
        role == v1::MEMBER_ROLE_ROUTER && member.heartbeat().leaving();
    if (member.role() == role && !is_gone) ++count;
  }
  return count;
}

bool IsReady(const v1::DescribeResponse& system, const std::string& model) {
  for (const v1::SessionInfo& session : system.sessions()) {
    if (!session.training() && session.state() == v1::SessionInfo::READY &&
        (session.session() == model ||
         absl::StartsWith(session.session(), absl::StrCat(model, "@")))) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::string Missing(const v1::DescribeResponse& system,
                    const SystemGoal& goal) {
  std::vector<std::string> missing;
  const int64_t routers = Count(system, v1::MEMBER_ROLE_ROUTER);
  if (routers < goal.routers) {
    missing.push_back(
        absl::StrCat(routers, " of ", goal.routers, " routers are there"));
  }
  const int64_t workers = Count(system, v1::MEMBER_ROLE_EXPERT_WORKER);
  if (workers < goal.workers) {
    missing.push_back(absl::StrCat(workers, " of ", goal.workers,
                                   " expert workers are there"));
  }
  if (!goal.model.empty() && !IsReady(system, goal.model)) {
    missing.push_back(absl::StrCat("model ", goal.model, " is not ready"));
  }
  if (!goal.full) return absl::StrJoin(missing, ", ");
  for (const std::string& name : system.awaited_models()) {
    if (name == goal.model) continue;  // said already
    missing.push_back(absl::StrCat("model ", name, " is not loading yet"));
  }
  for (const v1::SessionInfo& session : system.sessions()) {
    if (session.experts_below_replicas() == 0) continue;
    missing.push_back(absl::StrCat(session.experts_below_replicas(),
                                   " experts of ", session.session(),
                                   " are below their replicas"));
  }
  return absl::StrJoin(missing, ", ");
}

absl::Status WaitForSystem(CoordinatorClient& coordinator,
                           const SystemGoal& goal, milliseconds timeout,
                           const std::function<absl::Status()>& check) {
  const steady_clock::time_point end = steady_clock::now() + timeout;
  while (true) {
    RETURN_IF_ERROR(check());
    const absl::StatusOr<v1::DescribeResponse> system =
        coordinator.Describe(/*include_experts=*/false, kCallTimeout);
    const std::string missing = system.ok()
                                    ? Missing(*system, goal)
                                    : std::string(system.status().message());
    if (system.ok() && missing.empty()) return absl::OkStatus();
    if (!system.ok() && !absl::IsUnavailable(system.status()) &&
        !absl::IsDeadlineExceeded(system.status())) {
      return system.status();
    }
    if (steady_clock::now() + kPause > end) {
      return absl::DeadlineExceededError(
          absl::StrCat("waited ", timeout.count() / 1000.0, " s: ", missing));
    }
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace gshard
