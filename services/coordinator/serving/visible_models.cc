#include "services/coordinator/serving/visible_models.h"

#include <algorithm>
#include <set>
#include <string>

namespace gshard {

void HideModels(const Caller& caller, v1::DescribeResponse* response) {
  if (!IsLimited(caller)) return;
  std::set<std::string> jobs;
  for (const v1::JobProgress& job : response->jobs()) jobs.insert(job.job());
  const auto is_hidden = [&](const std::string& session, bool training) {
    // A training session is "job/attempt".
    if (training) return !jobs.contains(session.substr(0, session.find('/')));
    return !MayUseModel(caller, Role::kTranslate, session) &&
           !MayUseModel(caller, Role::kAdmin, session);
  };
  auto& sessions = *response->mutable_sessions();
  sessions.erase(std::remove_if(sessions.begin(), sessions.end(),
                                [&](const v1::SessionInfo& info) {
                                  return is_hidden(info.session(),
                                                   info.training());
                                }),
                 sessions.end());
  auto& awaited = *response->mutable_awaited_models();
  awaited.erase(std::remove_if(awaited.begin(), awaited.end(),
                               [&](const std::string& name) {
                                 return is_hidden(name, /*training=*/false);
                               }),
                awaited.end());
  for (v1::Member& member : *response->mutable_members()) {
    member.clear_leaving_waits_for();  // it names models
    auto& loads = *member.mutable_heartbeat()->mutable_session_loads();
    loads.erase(std::remove_if(loads.begin(), loads.end(),
                               [&](const v1::SessionLoad& load) {
                                 return is_hidden(load.session(),
                                                  /*training=*/false);
                               }),
                loads.end());
  }
}

}  // namespace gshard
