// ExpertWorkerProcess: an expert worker, whole: sessions, service, server,
// membership and metrics. `gshard_expert_worker` is one; several may live in
// one process.

#ifndef EXPERT_WORKER_EXPERT_WORKER_PROCESS_H_
#define EXPERT_WORKER_EXPERT_WORKER_PROCESS_H_

#include <grpcpp/channel.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "expert_worker/expert_service.h"
#include "expert_worker/session_table.h"
#include "expert_worker/worker_commands.h"
#include "services/config/flags.h"
#include "services/config/process_options.h"
#include "services/metrics/metrics.h"
#include "services/metrics/metrics_server.h"
#include "services/rpc/member_client.h"
#include "services/rpc/security.h"
#include "services/rpc/server.h"

namespace gshard {

struct ExpertWorkerOptions {
  ProcessOptions process;

  // Segments of translations that run at the same time, and of training.
  int64_t segments = 1;

  // What may wait for a thread, of each of the two.
  int64_t queue_calls = 1024;
  int64_t queue_mib = 1024;

  // Memory for sessions; 0 is all that this process may have.
  int64_t memory_mib = 0;

  // Instead of process.coordinator, if set.
  std::shared_ptr<grpc::Channel> coordinator_channel;
};

// Declares the flags of an expert worker. `options` must outlive `flags`.
void AddExpertWorkerFlags(Flags& flags, ExpertWorkerOptions* options);

// Thread-safe.
class ExpertWorkerProcess {
 public:
  explicit ExpertWorkerProcess(ExpertWorkerOptions options);
  // Drains with no grace if nobody has.
  ~ExpertWorkerProcess();

  ExpertWorkerProcess(const ExpertWorkerProcess&) = delete;
  ExpertWorkerProcess& operator=(const ExpertWorkerProcess&) = delete;

  // Serves, and begins to join the coordinator; health turns to SERVING when
  // it has. Does nothing after Drain(). Errors: those of ServerShell::Start,
  // MetricsServer::Start and MemberClient::Start.
  absl::Status Start();

  // Where it listens, with the port that was bound.
  const std::string& address() const { return server_.address(); }
  // Empty if there are no metrics.
  std::string metrics_address() const;
  std::string Metrics() const { return metrics_.Serialize(); }

  // Tests reach the server without sockets by this if it listens nowhere.
  std::shared_ptr<grpc::Channel> InProcessChannel() {
    return server_.InProcessChannel();
  }

  // Leaves the coordinator, finishes the calls that were accepted, within
  // `grace`, and ends the server.
  void Drain(std::chrono::milliseconds grace,
             std::chrono::milliseconds delay = std::chrono::milliseconds(0));

  // Returns OK after Drain(), or earlier with the reason why the coordinator
  // will never accept this worker.
  absl::Status Wait();

  // The name of the service that it is there for.
  static absl::string_view Service();

 private:
  const ExpertWorkerOptions options_;
  std::shared_ptr<Security> security_;  // set by Start()
  gshard::Metrics metrics_;
  const WorkerMetrics worker_metrics_;
  SessionTable sessions_;
  ExpertService service_;
  ServerShell server_;
  WorkerCommands commands_;

  std::mutex mutex_;
  std::condition_variable ended_;
  bool drained_ = false;    // guarded by mutex_
  absl::Status refused_;    // guarded by mutex_
  std::mutex drain_mutex_;  // one Start() or Drain() at a time
  std::atomic<int64_t> grace_ms_{0};

  std::unique_ptr<MemberClient> member_;
  std::unique_ptr<MetricsServer> metrics_server_;
};

}  // namespace gshard

#endif  // EXPERT_WORKER_EXPERT_WORKER_PROCESS_H_
