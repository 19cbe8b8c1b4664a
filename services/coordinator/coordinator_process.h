// CoordinatorProcess: the coordinator with its server and its metrics, as the
// program gshard_coordinator runs it and `gshard up` runs it beside others.

#ifndef SERVICES_COORDINATOR_COORDINATOR_PROCESS_H_
#define SERVICES_COORDINATOR_COORDINATOR_PROCESS_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "services/config/process_options.h"
#include "services/coordinator/coordinator.h"
#include "services/coordinator/coordinator_service.h"
#include "services/rpc/process/process_shell.h"

namespace gshard {

struct CoordinatorProcessOptions {
  // `listen` may be empty: for InProcessChannel() only. What is of members has
  // no use here, but for lease_ms: that of members.
  ProcessOptions process = {.listen = "127.0.0.1:7400"};

  // Where jobs and served models are kept for the next coordinator; empty: they
  // are forgotten with the process.
  std::string state_directory = {};

  // Folders that the paths of jobs and of models to load have to lie in, links
  // resolved; none: they may lead anywhere. See PathRights.
  std::vector<std::string> data_roots = {};

  int64_t max_jobs = CoordinatorOptions().max_jobs;

  // After which a member that holds up a command is cut off; see
  // MembersOptions.
  absl::Duration command_timeout = absl::Minutes(10);
  bool allow_mixed_devices = false;
  absl::Duration load_timeout = absl::Hours(2);

  ReduceWay reduce = ReduceWay::kCoordinator;
  // Name and checkpoint of the models to serve from the start, once so many
  // members are there.
  std::vector<std::pair<std::string, std::string>> models = {};
  int64_t min_routers = 1;
  int64_t min_workers = 1;
  // Says which models to serve besides; see models_file.h.
  std::string models_file = {};
  // Workers that hold each expert of a served model that does not say.
  int64_t replicas = 1;

  // A series for each expert of each layer.
  bool per_expert_metrics = false;
};

class CoordinatorProcess final : public ProcessShell {
 public:
  explicit CoordinatorProcess(CoordinatorProcessOptions options);
  ~CoordinatorProcess() override;

  // The name of the service that it is there for.
  static absl::string_view Service();

 private:
  // Goes on with the jobs and models of the coordinator before. Errors: those
  // of Coordinator::Restore.
  absl::Status Prepare() override;
  absl::Status Serve() override;
  // A running job ends with a checkpoint after the step that it is at; then
  // members are sent away.
  void Finish(std::chrono::milliseconds grace) override;

  const CoordinatorProcessOptions options_;
  TrainingMetrics training_metrics_;
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<CoordinatorServiceImpl> service_;
};

// "name=directory" as --model takes it. Errors: InvalidArgument.
absl::StatusOr<std::pair<std::string, std::string>> ParseModelFlag(
    absl::string_view text);

// The program: flags, signals, exit code. `arguments` without its name.
int RunCoordinator(const std::vector<std::string>& arguments);

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_COORDINATOR_PROCESS_H_
