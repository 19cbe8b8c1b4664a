// ExpertWorkerProcess: a complete expert worker: sessions, service and the
// process shell. `gshard_expert_worker` is one.

#ifndef EXPERT_WORKER_EXPERT_WORKER_PROCESS_H_
#define EXPERT_WORKER_EXPERT_WORKER_PROCESS_H_

#include <grpcpp/channel.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "expert_worker/expert_service.h"
#include "expert_worker/session_table.h"
#include "expert_worker/worker_commands.h"
#include "services/config/flags.h"
#include "services/config/process_options.h"
#include "services/graph/device.h"
#include "services/rpc/process/process_shell.h"

namespace gshard {

struct ExpertWorkerOptions {
  ProcessOptions process;

  // Segments of translations that run at the same time, and of training.
  int64_t segments = 1;

  // Queue limits, for each of the two kinds.
  int64_t queue_calls = 1024;
  int64_t queue_mib = 1024;

  // Memory for sessions; 0: the memory limit of this process, or that of the
  // device if it is less.
  int64_t memory_mib = 0;

  // Where experts are computed, as OpenDevice takes it, and, opened, null for
  // the CPU.
  std::string device_name = "cpu";
  std::shared_ptr<Device> device;

  // What fails together; see failure_domains.h.
  std::string failure_domain = {};
  // After SIGTERM, for the coordinator to place experts elsewhere.
  absl::Duration leave_timeout = absl::Seconds(30);

  // Instead of process.coordinator, if set.
  std::shared_ptr<grpc::Channel> coordinator_channel;
};

// Declares the flags of an expert worker. `options` must outlive `flags`.
// --device is opened by OpenDevice.
void AddExpertWorkerFlags(Flags& flags, ExpertWorkerOptions* options);

class ExpertWorkerProcess final : public ProcessShell {
 public:
  explicit ExpertWorkerProcess(ExpertWorkerOptions options);
  ~ExpertWorkerProcess() override;

  // The name of the service that it is there for.
  static absl::string_view Service();

 private:
  // Begins to join the coordinator; health turns to SERVING when it has.
  absl::Status Serve() override;
  // The coordinator places experts elsewhere, a job goes on without them from
  // its next checkpoint, both within the --leave_timeout.
  void HandOver(MemberClient& member) override;
  void Finish(std::chrono::milliseconds grace) override;

  const ExpertWorkerOptions options_;
  const WorkerMetrics worker_metrics_;
  SessionTable sessions_;
  ExpertService service_;
  WorkerCommands commands_;
};

}  // namespace gshard

#endif  // EXPERT_WORKER_EXPERT_WORKER_PROCESS_H_
