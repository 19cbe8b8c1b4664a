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

  // Number of concurrent segments, for translations and for training each.
  int64_t segments = 1;

  // Queue limits, for each of the two kinds.
  int64_t queue_calls = 1024;
  int64_t queue_mib = 1024;

  // Memory for sessions; 0: the memory limit of this process, or of the device
  // if lower.
  int64_t memory_mib = 0;

  // The device for experts, by its name for OpenDevice, and opened, null for
  // the CPU.
  std::string device_name = "cpu";
  std::shared_ptr<Device> device;

  // See failure_domains.h.
  std::string failure_domain = {};
  // Time after SIGTERM for the coordinator to place experts elsewhere.
  absl::Duration leave_timeout = absl::Seconds(30);

  // If set, used instead of process.coordinator.
  std::shared_ptr<grpc::Channel> coordinator_channel;
};

// Declares the flags of an expert worker. `options` must outlive `flags`.
// --device is opened by OpenDevice.
void AddExpertWorkerFlags(Flags& flags, ExpertWorkerOptions* options);

class ExpertWorkerProcess final : public ProcessShell {
 public:
  explicit ExpertWorkerProcess(ExpertWorkerOptions options);
  ~ExpertWorkerProcess() override;

  // The name of the process's main service.
  static absl::string_view Service();

 private:
  // Starts joining the coordinator; health becomes SERVING when joined.
  absl::Status Serve() override;
  // Waits at most --leave_timeout for the coordinator to place experts
  // elsewhere, and for jobs to continue without them from their next
  // checkpoint.
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
