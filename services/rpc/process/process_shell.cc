#include "services/rpc/process/process_shell.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"
#include "services/base/log.h"
#include "services/base/status_macros.h"
#include "services/base/thread_priority.h"
#include "services/rpc/wire/tensor_pieces.h"
#include "services/tensor/buffer.h"

namespace gshard {
namespace {

// The silence after which a peer counts as lost.
std::chrono::milliseconds Silence(const ProcessOptions& options) {
  return std::chrono::milliseconds(options.lease_ms);
}

ServerOptions ServerOptionsOf(const ProcessOptions& options) {
  return {.address = options.listen,
          .reflection = options.reflection,
          .max_message_bytes = MaxMessageBytes(options),
          .max_calls = options.max_calls,
          .limits = {.connections = options.max_connections,
                     .peer_connections = options.max_peer_connections,
                     .held_bytes = options.max_held_mib << 20},
          .silence = Silence(options),
          .max_connection_idle =
              absl::ToChronoMilliseconds(options.max_connection_idle),
          .max_connection_age =
              absl::ToChronoMilliseconds(options.max_connection_age)};
}

}  // namespace

static_assert(kFramePayloadBytes < size_t{kLeastMessageMib} << 20,
              "a frame and its header are one message");

size_t MaxMessageBytes(const ProcessOptions& options) {
  return static_cast<size_t>(options.max_message_mib) << 20;
}

ProcessShell::ProcessShell(const ProcessOptions& options,
                           absl::string_view role,
                           absl::string_view build_version)
    : options_(options),
      role_(role),
      build_version_(build_version),
      sharing_{.account = options_.shared_memory_mib << 20,
               .patience = Silence(options_)},
      metrics_(role_, build_version_),
      server_(std::make_unique<ServerShell>(ServerOptionsOf(options_))) {
  metrics_.AddCallbackGauge("gshard_tensor_bytes", "Memory of tensors in use.",
                            [] { return GetBufferUsage().live_bytes; });
  metrics_.AddCallbackGauge("gshard_tensor_cached_bytes",
                            "Memory that is kept for tensors to come.",
                            [] { return GetBufferUsage().cached_bytes; });
  metrics_.AddCallbackGauge("gshard_shared_memory_bytes",
                            "Memory that is shared with peers on this machine.",
                            [this] { return sharing_.account.used(); });
  server_->AddMetrics(metrics_);
  server_->UseTracer(tracer_);
  server_->OnDrain([this] { Finish(grace_); });
}

void ProcessShell::Close() {
  const std::chrono::milliseconds none(0);
  DrainAfter(/*hand_over=*/false, none, none);
  metrics_server_ = nullptr;
  member_ = nullptr;
  server_ = nullptr;
}

absl::Status ProcessShell::Start() {
  MutexLock start_lock(start_mutex_);
  {
    MutexLock lock(mutex_);
    if (drained_) return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(SpanCollector collector, SpanCollectorOf(options_));
  ASSIGN_OR_RETURN(
      security_, Security::CreateForServer(options_.security, options_.listen));
  security_->AddMetrics(metrics_);
  server_->UseSecurity(security_);
  if (!options_.metrics_address.empty()) {
    ASSIGN_OR_RETURN(metrics_server_,
                     MetricsServer::Start(options_.metrics_address, metrics_));
  }
  RETURN_IF_ERROR(Prepare());
  RETURN_IF_ERROR(server_->Start());
  if (!collector.endpoint.empty()) StartTracing(std::move(collector));
  LogInfo(absl::StrCat(role_, " serves"), {{"address", address()},
                                           {"metrics", metrics_address()},
                                           {"version", build_version_}});
  return Serve();
}

absl::Status ProcessShell::Join(v1::MemberRole role,
                                std::shared_ptr<grpc::Channel> channel,
                                int64_t memory_bytes, MemberHandler* handler,
                                absl::string_view device,
                                absl::string_view failure_domain) {
  MemberOptions member;
  member.coordinator = options_.coordinator;
  member.channel = std::move(channel);
  member.silence = Silence(options_);
  member.security = security_;
  member.role = role;
  member.address = AdvertisedAddress();
  member.name = Name();
  member.build_version = build_version_;
  member.tracer = tracer_;
  member.memory_bytes = memory_bytes;
  member.device = std::string(device);
  member.failure_domain = std::string(failure_domain);
  member.training_niceness = NicenessOfShare(options_.training_share);
  LogInfo(absl::StrCat(role_, " joins"),
          {{"advertised", member.address}, {"name", member.name}});
  member_ = std::make_unique<MemberClient>(std::move(member), handler);
  return member_->Start();
}

std::string ProcessShell::AdvertisedAddress() const {
  return gshard::AdvertisedAddress(options_, address());
}

std::string ProcessShell::Name() const {
  return MemberName(options_, role_ == "expert_worker" ? "worker" : role_,
                    AdvertisedAddress());
}

void ProcessShell::StartTracing(SpanCollector collector) {
  exporter_ = std::make_shared<SpanExporter>(
      SpanExporterOptions{
          .endpoint = std::move(collector.endpoint),
          .headers = std::move(collector.headers),
          .resource = {.service = absl::StrCat(
                           "gshard-", absl::StrReplaceAll(role_, {{"_", "-"}})),
                       .instance = Name(),
                       .version = build_version_}},
      SpanMetrics(metrics_));
  tracer_.ExportTo(exporter_, options_.trace.sample_ratio);
}

ChannelOptions ProcessShell::PeerChannelOptions() const {
  return {.max_message_bytes = MaxMessageBytes(options_),
          .security = security_,
          .silence = Silence(options_)};
}

std::string ProcessShell::metrics_address() const {
  return metrics_server_ == nullptr ? "" : metrics_server_->address();
}

void ProcessShell::Drain(std::chrono::milliseconds grace,
                         std::chrono::milliseconds delay) {
  DrainAfter(/*hand_over=*/true, grace, delay);
}

void ProcessShell::DrainAfter(bool hand_over, std::chrono::milliseconds grace,
                              std::chrono::milliseconds delay) {
  MutexLock start_lock(start_mutex_);
  {
    MutexLock lock(mutex_);
    if (drained_) return;
  }
  grace_ = grace;
  // First of all, since leaving may wait for the coordinator.
  server_->EndReadiness();
  if (member_ != nullptr && hand_over) HandOver(*member_);
  // Before the delay, so that the coordinator places elsewhere what this
  // process holds, while it still serves it.
  if (member_ != nullptr && !IsMemberUntilDrained()) member_->Stop();
  server_->Drain(grace, delay);
  if (member_ != nullptr) member_->Stop();
  if (exporter_ != nullptr) exporter_->Shutdown();
  End(absl::OkStatus());
}

void ProcessShell::End(const absl::Status& status) {
  MutexLock lock(mutex_);
  if (status.ok()) {
    drained_ = true;
  } else {
    refused_ = status;
  }
  ended_.NotifyAll();
}

absl::Status ProcessShell::Wait() {
  MutexLock lock(mutex_);
  ended_.Wait(
      lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return ended(); });
  return refused_;
}

bool ProcessShell::EndsWithin(std::chrono::milliseconds time) {
  MutexLock lock(mutex_);
  return ended_.WaitFor(
      lock, time,
      [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return ended(); });
}

}  // namespace gshard
