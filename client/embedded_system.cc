// A system inside this process. Its members use the same sockets and messages
// as separate processes do.

#include "client/local_system.h"
#include "expert_worker/expert_worker_process.h"
#include "router/router_process.h"
#include "services/base/machine_limits.h"
#include "services/base/parallel.h"
#include "services/base/status_macros.h"
#include "services/coordinator/coordinator_process.h"

namespace gshard {
namespace {

class EmbeddedSystem final : public LocalSystem {
 public:
  explicit EmbeddedSystem(const LocalSystemOptions& options)
      : options_(options) {}
  ~EmbeddedSystem() override { Stop(); }

  absl::Status Start() override {
    SetComputeThreads(options_.threads > 0 ? static_cast<int>(options_.threads)
                                           : CpuLimit());
    const std::vector<LocalMember> members = LocalMembers(options_);
    for (const LocalMember& member : members) {
      ProcessOptions process;
      process.listen = member.address;
      process.metrics_address = member.metrics_address;
      process.drain_seconds = options_.drain_seconds;
      process.log_level = options_.log_level;
      process.trace = options_.trace;
      process.coordinator = members.front().address;
      process.name = member.name;
      RETURN_IF_ERROR(Annotate(StartMember(member, process), member.name));
    }
    return absl::OkStatus();
  }

  // They end only with the process.
  absl::Status Check() override { return absl::OkStatus(); }

  bool Stop() override {
    const std::chrono::seconds grace(options_.drain_seconds);
    // A job's last checkpoint needs all members; work accepted by routers needs
    // them and the workers.
    if (coordinator_ != nullptr) coordinator_->Drain(grace);
    for (const auto& router : routers_) router->Drain(grace);
    for (const auto& worker : workers_) worker->Drain(grace);
    routers_.clear();
    workers_.clear();
    coordinator_.reset();
    return true;
  }

 private:
  absl::Status StartMember(const LocalMember& member,
                           const ProcessOptions& process) {
    switch (member.role) {
      case LocalMember::Role::kCoordinator: {
        CoordinatorProcessOptions options;
        options.process = process;
        ASSIGN_OR_RETURN(options.coordinator.reduce,
                         ReduceWayFromName(options_.reduce));
        options.state_directory = options_.state_directory;
        coordinator_ = std::make_unique<CoordinatorProcess>(options);
        return coordinator_->Start();
      }
      case LocalMember::Role::kRouter: {
        RouterOptions options;
        options.process = process;
        options.limits.debug_calls = options_.enable_debug_calls;
        options.device = InTurn(options_.devices, member);
        routers_.push_back(std::make_unique<RouterProcess>(options));
        return routers_.back()->Start();
      }
      case LocalMember::Role::kWorker: {
        ExpertWorkerOptions options;
        options.process = process;
        options.device = InTurn(options_.devices, member);
        workers_.push_back(std::make_unique<ExpertWorkerProcess>(options));
        return workers_.back()->Start();
      }
    }
    return absl::OkStatus();
  }

  const LocalSystemOptions options_;
  std::unique_ptr<CoordinatorProcess> coordinator_;
  std::vector<std::unique_ptr<RouterProcess>> routers_;
  std::vector<std::unique_ptr<ExpertWorkerProcess>> workers_;
};

}  // namespace

std::unique_ptr<LocalSystem> MakeEmbeddedSystem(
    const LocalSystemOptions& options) {
  return std::make_unique<EmbeddedSystem>(options);
}

}  // namespace gshard
