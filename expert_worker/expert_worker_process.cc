#include "expert_worker/expert_worker_process.h"

#include <utility>

#include "services/base/log.h"
#include "services/base/machine_limits.h"
#include "services/base/status_macros.h"
#include "services/base/thread_priority.h"
#include "services/moe/graph_ops.h"
#include "services/rpc/process_server.h"
#include "services/segments/role_split.h"
#include "services/tensor/buffer.h"

namespace gshard {
namespace {

int64_t MemoryBytes(const ExpertWorkerOptions& options) {
  return options.memory_mib > 0 ? options.memory_mib << 20 : MemoryLimit();
}

ExpertServiceOptions ServiceOptions(const ExpertWorkerOptions& options) {
  ExpertServiceOptions service;
  service.queue.threads = static_cast<int>(options.segments);
  service.queue.niceness = NicenessOfShare(options.process.training_share);
  service.queue.max_calls = static_cast<size_t>(options.queue_calls);
  service.queue.max_bytes = static_cast<size_t>(options.queue_mib) << 20;
  service.stream.frame_limits.max_bytes = MaxMessageBytes(options.process);
  return service;
}

}  // namespace

void AddExpertWorkerFlags(Flags& flags, ExpertWorkerOptions* options) {
  AddMemberFlags(flags, &options->process);
  AddProcessFlags(flags, &options->process);
  flags.Integer("segments", &options->segments, 1, 1024,
                "segments of translations that run at the same time, each by a "
                "thread that the --threads help; and as many of training, "
                "which make way for them");
  flags.Integer("queue_calls", &options->queue_calls, 1, 1 << 20,
                "calls that may wait for a thread, of translations and of "
                "training each");
  flags.Integer("queue_mib", &options->queue_mib, 1, 1 << 20,
                "MiB of tensors that may wait for a thread, of translations "
                "and of training each");
  flags.Integer("memory_mib", &options->memory_mib, 0, 1 << 30,
                "MiB that parameters, their gradients and what microbatches "
                "keep while they are run may take; 0 is all "
                "that the machine or the container has");
}

ExpertWorkerProcess::ExpertWorkerProcess(ExpertWorkerOptions options)
    : options_(std::move(options)),
      metrics_("expert_worker", GSHARD_VERSION),
      worker_metrics_(metrics_),
      sessions_(MemoryBytes(options_)),
      service_(&sessions_, ServiceOptions(options_), worker_metrics_),
      server_(ServerOptionsOf(options_.process)),
      commands_(
          &sessions_, &service_, worker_metrics_,
          [this](bool joined) { server_.SetReady(joined); },
          [this](const absl::Status& status) {
            std::lock_guard<std::mutex> lock(mutex_);
            refused_ = status;
            ended_.notify_all();
          }) {
  // Before any program is parsed.
  RegisterMoeOps();
  RegisterShardingOps();
  metrics_.AddCallbackGauge("gshard_worker_sessions", "Sessions loaded.",
                            [this] { return sessions_.size(); });
  metrics_.AddCallbackGauge(
      "gshard_worker_session_bytes",
      "Memory of the sessions' parameters, optimizer state and gradients, and "
      "of what microbatches keep while they are run.",
      [this] { return sessions_.memory_bytes_used(); });
  metrics_.AddCallbackGauge("gshard_worker_queue_calls",
                            "Calls that wait for a thread.",
                            [this] { return service_.waiting(); });
  metrics_.AddCallbackGauge("gshard_worker_queue_bytes",
                            "Tensor bytes that wait for a thread.",
                            [this] { return service_.waiting_bytes(); });
  metrics_.AddCallbackGauge("gshard_tensor_bytes", "Memory of tensors in use.",
                            [] { return GetBufferUsage().live_bytes; });
  metrics_.AddCallbackGauge("gshard_tensor_cached_bytes",
                            "Memory that is kept for tensors to come.",
                            [] { return GetBufferUsage().cached_bytes; });
  server_.AddMetrics(metrics_);
  server_.AddService(&service_, Service());
  server_.OnDrain([this] {
    service_.FinishAccepted(std::chrono::milliseconds(grace_ms_.load()));
  });
}

ExpertWorkerProcess::~ExpertWorkerProcess() {
  Drain(std::chrono::milliseconds(0));
}

absl::Status ExpertWorkerProcess::Start() {
  std::lock_guard<std::mutex> drain_lock(drain_mutex_);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (drained_) return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(security_,
                   Security::CreateForServer(options_.process.security,
                                             options_.process.listen));
  security_->AddMetrics(metrics_);
  server_.UseSecurity(security_);
  RETURN_IF_ERROR(server_.Start());
  if (!options_.process.metrics_address.empty()) {
    ASSIGN_OR_RETURN(
        metrics_server_,
        MetricsServer::Start(options_.process.metrics_address, metrics_));
  }
  MemberOptions member;
  member.coordinator = options_.process.coordinator;
  member.channel = options_.coordinator_channel;
  member.silence = Silence(options_.process);
  member.security = security_;
  member.role = v1::MEMBER_ROLE_EXPERT_WORKER;
  member.address = AdvertisedAddress(options_.process, server_.address());
  member.name = MemberName(options_.process, "worker", member.address);
  member.build_version = GSHARD_VERSION;
  member.memory_bytes = MemoryBytes(options_);
  member.training_niceness = NicenessOfShare(options_.process.training_share);
  LogInfo("expert worker serves", {{"address", server_.address()},
                                   {"advertised", member.address},
                                   {"name", member.name}});
  commands_.ReachBuddiesBy(ChannelOptionsOf(options_.process, security_));
  member_ = std::make_unique<MemberClient>(std::move(member), &commands_);
  return member_->Start();
}

std::string ExpertWorkerProcess::metrics_address() const {
  return metrics_server_ == nullptr ? "" : metrics_server_->address();
}

void ExpertWorkerProcess::Drain(std::chrono::milliseconds grace,
                                std::chrono::milliseconds delay) {
  std::lock_guard<std::mutex> drain_lock(drain_mutex_);
  grace_ms_ = grace.count();
  // At once: leaving may wait for the coordinator.
  server_.EndReadiness();
  // Before the delay, so that the coordinator places its experts elsewhere
  // while it still serves them.
  if (member_ != nullptr) member_->Stop();
  server_.Drain(grace, delay);
  std::lock_guard<std::mutex> lock(mutex_);
  drained_ = true;
  ended_.notify_all();
}

absl::string_view ExpertWorkerProcess::Service() {
  return v1::ExpertWorkerService::service_full_name();
}

absl::Status ExpertWorkerProcess::Wait() {
  std::unique_lock<std::mutex> lock(mutex_);
  ended_.wait(lock, [this] { return drained_ || !refused_.ok(); });
  return refused_;
}

}  // namespace gshard
