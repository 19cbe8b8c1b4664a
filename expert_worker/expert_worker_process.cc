#include "expert_worker/expert_worker_process.h"

#include <algorithm>
#include <utility>

#include "services/base/log.h"
#include "services/base/machine_limits.h"
#include "services/base/thread_priority.h"
#include "services/moe/graph_ops.h"
#include "services/segments/role_split.h"

namespace gshard {
namespace {

int64_t MemoryBytes(const ExpertWorkerOptions& options) {
  if (options.memory_mib > 0) return options.memory_mib << 20;
  // The device holds the sessions; the host additionally holds a copy of a
  // training one while its checkpoint is written.
  return options.device == nullptr
             ? MemoryLimit()
             : std::min(MemoryLimit(), options.device->memory_bytes());
}

ExpertServiceOptions ServiceOptions(const ExpertWorkerOptions& options,
                                    const SharingOptions& sharing,
                                    const Tracer& tracer) {
  ExpertServiceOptions service{
      .queue = {}, .stream = {}, .sharing = sharing, .tracer = tracer};
  service.queue.threads = static_cast<int>(options.segments);
  service.queue.niceness = NicenessOfShare(options.process.training_share);
  service.queue.max_calls = static_cast<size_t>(options.queue_calls);
  service.queue.max_bytes = static_cast<size_t>(options.queue_mib) << 20;
  service.stream.frame_limits.max_bytes = MaxMessageBytes(options.process);
  return service;
}

}  // namespace

void AddExpertWorkerFlags(Flags& flags, ExpertWorkerOptions* options) {
  flags.Version(GSHARD_VERSION);
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
                "keep while they are run may take; 0 is all that the machine, "
                "the container or the device has");
  flags.Text("failure_domain", &options->failure_domain, "NAME",
             "what fails together, such as the node, or zone/node: replicas of "
             "an expert are kept in different ones, at the widest level that "
             "can be; empty: this worker alone");
  flags.Duration(
      "leave_timeout", &options->leave_timeout,
      "how long, after SIGTERM, the worker waits for the coordinator "
      "to place its experts elsewhere; it does not if it holds "
      "none, or if nobody else can have them");
  flags.Text("device", &options->device_name, "cpu|cuda:N",
             "what computes the experts: the CPU, or a GPU by its number among "
             "those that the process sees");
}

ExpertWorkerProcess::ExpertWorkerProcess(ExpertWorkerOptions options)
    : ProcessShell(options.process, "expert_worker", GSHARD_VERSION),
      options_(std::move(options)),
      worker_metrics_(metrics()),
      sessions_(MemoryBytes(options_), options_.device),
      service_(&sessions_, ServiceOptions(options_, sharing(), tracer()),
               worker_metrics_),
      commands_(
          &sessions_, &service_, worker_metrics_,
          [this](bool joined) { server().SetReady(joined); },
          [this](const absl::Status& status) { End(status); }) {
  // Before any program is parsed.
  RegisterMoeOps();
  RegisterShardingOps();
  metrics().AddCallbackGauge("gshard_worker_sessions", "Sessions loaded.",
                             [this] { return sessions_.size(); });
  metrics().AddCallbackGauge(
      "gshard_worker_session_bytes",
      "Memory of the sessions' parameters, optimizer state and gradients, and "
      "of what microbatches keep while they are run.",
      [this] { return sessions_.memory_bytes_used(); });
  metrics().AddCallbackGauge("gshard_worker_queue_calls",
                             "Calls that wait for a thread.",
                             [this] { return service_.waiting(); });
  metrics().AddCallbackGauge("gshard_worker_queue_bytes",
                             "Tensor bytes that wait for a thread.",
                             [this] { return service_.waiting_bytes(); });
  metrics().AddCallbackGauge(
      "gshard_worker_blocked_seconds",
      "How long all threads for translations have been running the same calls.",
      [this] {
        return std::chrono::duration<double>(
                   service_.queue(/*training=*/false).blocked())
            .count();
      });
  server().AddService(&service_, Service());
}

ExpertWorkerProcess::~ExpertWorkerProcess() { Close(); }

absl::Status ExpertWorkerProcess::Serve() {
  commands_.ReachBuddiesBy(PeerChannelOptions());
  return Join(v1::MEMBER_ROLE_EXPERT_WORKER, options_.coordinator_channel,
              MemoryBytes(options_), &commands_,
              BackendName(BackendOf(options_.device.get())),
              options_.failure_domain);
}

void ExpertWorkerProcess::HandOver(MemberClient& member) {
  using Clock = std::chrono::steady_clock;
  using std::chrono::milliseconds;
  const Clock::time_point end =
      Clock::now() + absl::ToChronoMilliseconds(options_.leave_timeout);
  const auto left = [&] {
    return std::max(milliseconds(0), std::chrono::duration_cast<milliseconds>(
                                         end - Clock::now()));
  };
  absl::Status status = member.AwaitMayLeave(left());
  if (!sessions_.AwaitNoTraining(status.ok() ? left() : milliseconds(0))) {
    status.Update(absl::DeadlineExceededError(
        "a job that has experts here has made no checkpoint"));
  }
  if (status.ok()) return;
  LogWarning("the worker leaves with experts that are needed",
             {{"leave_timeout", absl::FormatDuration(options_.leave_timeout)},
              {"status", status}});
}

void ExpertWorkerProcess::Finish(std::chrono::milliseconds grace) {
  service_.FinishAccepted(grace);
}

absl::string_view ExpertWorkerProcess::Service() {
  return v1::ExpertWorkerService::service_full_name();
}

}  // namespace gshard
