// CoordinatorProcess: the coordinator with its server and its metrics, used by
// the program gshard_coordinator and by `gshard up`.

#ifndef SERVICES_COORDINATOR_COORDINATOR_PROCESS_H_
#define SERVICES_COORDINATOR_COORDINATOR_PROCESS_H_

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "services/config/process_options.h"
#include "services/coordinator/coordinator.h"
#include "services/coordinator/coordinator_service.h"
#include "services/rpc/process/process_shell.h"

namespace gshard {

struct CoordinatorProcessOptions {
  // `listen` may be empty: for InProcessChannel() only. Options of members are
  // ignored, except lease_ms, which is the members' lease.
  ProcessOptions process = {.listen = "127.0.0.1:7400"};

  // What the process knows itself is ignored: the lease, and what traces and
  // counts.
  CoordinatorOptions coordinator = {};

  // Stores jobs and served models for the next coordinator; empty: they are
  // lost with the process.
  std::string state_directory = {};

  // Gets the address for others, as a line, once the process serves; empty:
  // none.
  std::string address_file = {};

  // Export a metric series for each expert of each layer.
  bool per_expert_metrics = false;
};

class CoordinatorProcess final : public ProcessShell {
 public:
  explicit CoordinatorProcess(CoordinatorProcessOptions options);
  ~CoordinatorProcess() override;

  // The name of the process's main service.
  static absl::string_view Service();

 private:
  // Resumes the jobs and models of the previous coordinator. Errors: those of
  // Coordinator::Restore.
  absl::Status Prepare() override;
  // Errors: those of writing the address.
  absl::Status Serve() override;
  // A running job ends with a checkpoint after its current step; then members
  // are dismissed.
  void Finish(std::chrono::milliseconds grace) override;

  const CoordinatorProcessOptions options_;
  TrainingMetrics training_metrics_;
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<CoordinatorServiceImpl> service_;
};

// The program: flags, signals, exit code. `arguments` exclude its name.
int RunCoordinator(const std::vector<std::string>& arguments);

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_COORDINATOR_PROCESS_H_
