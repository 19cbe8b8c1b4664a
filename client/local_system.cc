#include "client/local_system.h"

#include "absl/strings/str_cat.h"

namespace gshard {

std::vector<LocalMember> LocalMembers(const LocalSystemOptions& options) {
  const SystemLayout layout(options.directory);
  std::vector<LocalMember> members;
  const auto add = [&](LocalMember::Role role, int64_t index,
                       const std::string& name) {
    std::string metrics;
    if (options.metrics_port_base > 0) {
      metrics = absl::StrCat("127.0.0.1:",
                             options.metrics_port_base + members.size());
    }
    members.push_back({role, index, name, layout.Address(name), metrics});
  };
  add(LocalMember::Role::kCoordinator, 0, "coordinator");
  for (int64_t i = 0; i < options.routers; ++i) {
    add(LocalMember::Role::kRouter, i, absl::StrCat("router-", i));
  }
  for (int64_t i = 0; i < options.workers; ++i) {
    add(LocalMember::Role::kWorker, i, absl::StrCat("worker-", i));
  }
  return members;
}

}  // namespace gshard
