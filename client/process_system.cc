// A system of separate processes, which are children of this one.

#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/child_process.h"
#include "client/local_system.h"
#include "services/base/log.h"
#include "services/base/machine_limits.h"
#include "services/base/status_macros.h"

namespace gshard {
namespace {

// Added to a process's drain time.
constexpr std::chrono::seconds kSlack{5};
constexpr int kLogLines = 5;

std::string Program(LocalMember::Role role) {
  switch (role) {
    case LocalMember::Role::kCoordinator:
      return "gshard_coordinator";
    case LocalMember::Role::kRouter:
      return "gshard_router";
    case LocalMember::Role::kWorker:
      return "gshard_expert_worker";
  }
  return "";
}

class ProcessSystem final : public LocalSystem {
 public:
  explicit ProcessSystem(const LocalSystemOptions& options)
      : options_(options), layout_(options.directory) {}
  ~ProcessSystem() override { Stop(); }

  absl::Status Start() override {
    std::error_code error;
    std::filesystem::create_directories(layout_.directory() + "/logs", error);
    if (error) {
      return absl::FailedPreconditionError(
          absl::StrCat(layout_.directory(), "/logs: ", error.message()));
    }
    for (const LocalMember& member : LocalMembers(options_)) {
      ASSIGN_OR_RETURN(std::unique_ptr<ChildProcess> child,
                       ChildProcess::Start(member.name, CommandLine(member),
                                           layout_.LogPath(member.name)));
      children_[member.role].push_back(std::move(child));
    }
    return absl::OkStatus();
  }

  absl::Status Check() override {
    for (const auto& [role, children] : children_) {
      for (const auto& child : children) {
        if (!child->Ended().has_value()) continue;
        const std::string log = child->LastLogLines(kLogLines);
        return absl::AbortedError(absl::StrCat(
            child->name(), " (process ", child->pid(), ") ended with ",
            *child->Ended(), "; its log ", child->log_path(),
            log.empty() ? " has no line of it" : " ends with:\n", log));
      }
    }
    return absl::OkStatus();
  }

  bool Stop() override {
    bool orderly = true;
    // A job's last checkpoint needs all members; work accepted by routers needs
    // them and the workers.
    for (const LocalMember::Role role :
         {LocalMember::Role::kCoordinator, LocalMember::Role::kRouter,
          LocalMember::Role::kWorker}) {
      for (const auto& child : children_[role]) child->Terminate();
      for (const auto& child : children_[role]) {
        const std::chrono::seconds grace(options_.drain_seconds);
        const bool in_time = child->WaitOrKill(grace + kSlack);
        if (in_time && (child->Succeeded() || child->EndedBy(SIGTERM))) {
          continue;
        }
        orderly = false;
        LogWarning("a process has not stopped as it should",
                   {{"process", child->name()}, {"end", *child->Ended()}});
      }
    }
    children_.clear();
    return orderly;
  }

 private:
  std::vector<std::string> CommandLine(const LocalMember& member) const {
    std::vector<std::string> argv = {
        absl::StrCat(options_.program_directory, "/", Program(member.role)),
        absl::StrCat("--listen=", member.address),
        absl::StrCat("--metrics_address=", member.metrics_address),
        absl::StrCat("--drain_seconds=", options_.drain_seconds),
        absl::StrCat("--threads=", Threads()),
        absl::StrCat("--log_level=", options_.log_level),
        absl::StrCat("--otlp_endpoint=", options_.trace.otlp_endpoint),
        absl::StrCat("--otlp_headers_file=", options_.trace.otlp_headers_file),
        absl::StrCat("--trace_sample_ratio=", options_.trace.sample_ratio),
        absl::StrCat("--s3_endpoint=", options_.store.endpoint),
        absl::StrCat("--s3_region=", options_.store.region)};
    if (options_.store.insecure) argv.push_back("--insecure");
    if (member.role == LocalMember::Role::kRouter) {
      if (options_.enable_debug_calls) argv.push_back("--enable_debug_calls");
    }
    if (member.role != LocalMember::Role::kCoordinator) {
      argv.push_back(
          absl::StrCat("--device=", InTurn(options_.device_names, member)));
      argv.push_back(absl::StrCat("--name=", member.name));
      argv.push_back(
          absl::StrCat("--coordinator=", layout_.Address("coordinator")));
    } else {
      argv.push_back(absl::StrCat("--reduce=", options_.reduce));
      if (!options_.state_directory.empty()) {
        argv.push_back(
            absl::StrCat("--state_directory=", options_.state_directory));
      }
    }
    return argv;
  }

  // Routers and workers compute at the same time.
  int64_t Threads() const {
    if (options_.threads > 0) return options_.threads;
    return std::max<int64_t>(
        1, CpuLimit() / (options_.routers + options_.workers));
  }

  const LocalSystemOptions options_;
  const SystemLayout layout_;
  std::map<LocalMember::Role, std::vector<std::unique_ptr<ChildProcess>>>
      children_;
};

}  // namespace

std::unique_ptr<LocalSystem> MakeProcessSystem(
    const LocalSystemOptions& options) {
  return std::make_unique<ProcessSystem>(options);
}

}  // namespace gshard
