#include "services/coordinator/coordinator_process.h"

#include <iostream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "services/base/log.h"
#include "services/base/status_macros.h"
#include "services/config/flags.h"
#include "services/rpc/signal_watcher.h"

namespace gshard {
namespace {

constexpr char kVersion[] = GSHARD_VERSION;

struct CoordinatorFlags {
  CoordinatorProcessOptions process;
  std::vector<std::string> models;
  int64_t lease_ms = 5000;
  std::string reduce = "coordinator";
  int64_t drain_seconds = 30;
  absl::Duration drain_delay = absl::ZeroDuration();
  std::string log_level = "info";
};

Flags DeclareFlags(CoordinatorFlags* values) {
  Flags flags("gshard_coordinator",
              "Keeps membership and placement of a GShard cluster, runs its "
              "training jobs and says which models it serves.");
  CoordinatorProcessOptions& process = values->process;
  flags.Text("listen", &process.listen, "ADDRESS",
             "where members and clients reach it: host:port or unix:/path");
  flags.Text("metrics-address", &process.metrics_address, "HOST:PORT",
             "where Prometheus scrapes /metrics; empty for nowhere");
  flags.Bool("reflection", &process.reflection,
             "lets tools such as grpcurl list the services");
  flags.Integer("max-message-mib", &process.max_message_mib, 1, 2047,
                "largest message that is accepted, in MiB");
  flags.Integer("max-calls", &process.max_calls, 1, 1 << 24,
                "calls that may be under way; more are refused unread");
  flags.Text("state-directory", &process.state_directory, "DIR",
             "keeps jobs and served models, so that a restarted coordinator "
             "goes on with them; empty: they are forgotten");
  flags.Integer("lease-ms", &values->lease_ms, 100, 3'600'000,
                "milliseconds of silence after which a member is cut off; give "
                "members the same");
  flags.Choice(
      "reduce", &values->reduce, {"coordinator", "gloo", "nccl"},
      "who sums the dense gradients of training jobs: this process, or "
      "the routers among themselves over TCP or GPUs, who then read "
      "and write checkpoints, too; the result is the same");
  flags.List("model", &values->models, "NAME=DIR",
             "checkpoints to serve from the start, each under its name");
  flags.Integer("min-routers", &process.min_routers, 1, 65536,
                "routers to wait for before these are loaded");
  flags.Integer("min-workers", &process.min_workers, 0, 65536,
                "expert workers to wait for before these are loaded");
  flags.Integer("replicas", &process.replicas, 1, kMaxReplicas,
                "workers that hold each expert of a served model; with 2, one "
                "may be lost unnoticed");
  flags.Bool("per-expert-metrics", &process.per_expert_metrics,
             "adds a series for each expert of each layer");
  flags.Integer("drain-seconds", &values->drain_seconds, 0, 86'400,
                "how long a running job and open calls may take to end after "
                "SIGTERM");
  flags.Duration("drain-delay", &values->drain_delay,
                 "time after SIGTERM in which health says NOT_SERVING and all "
                 "goes on, so that callers go elsewhere");
  flags.Duration("max-connection-idle", &process.max_connection_idle,
                 "closes connections without calls after this time; 0: never");
  flags.Duration("max-connection-age", &process.max_connection_age,
                 "takes no new calls on a connection after this time, so that "
                 "clients connect again; 0: no limit");
  AddServerSecurityFlags(flags, &process.security);
  flags.Choice("log-level", &values->log_level,
               {"debug", "info", "warning", "error"},
               "least severity that is logged");
  flags.Example(
      "gshard_coordinator --listen=0.0.0.0:7400 --tls_certificate=c.pem "
      "--tls_key=c.key --tls_ca=ca.pem --metrics-address=127.0.0.1:9400");
  flags.Example(
      "gshard_coordinator --listen=unix:/run/gshard/coordinator "
      "--model=translator=/data/checkpoints/step-00020000 "
      "--min-workers=2");
  return flags;
}

LogSeverity SeverityOf(const std::string& level) {
  if (level == "debug") return LogSeverity::kDebug;
  if (level == "warning") return LogSeverity::kWarning;
  if (level == "error") return LogSeverity::kError;
  return LogSeverity::kInfo;
}

}  // namespace

CoordinatorProcess::CoordinatorProcess(CoordinatorProcessOptions options)
    : options_(std::move(options)),
      metrics_("coordinator", kVersion),
      training_metrics_(metrics_, options_.per_expert_metrics) {
  coordinator_ = std::make_unique<Coordinator>(CoordinatorOptions{
      .lease = options_.lease,
      .build_version = kVersion,
      .metrics = &training_metrics_,
      .member_counts = metrics_.AddGaugeFamily(
          "gshard_members", "Members with a lease.", {"role"}),
      .serving_gauges = ServingGauges(metrics_),
      .models = options_.models,
      .min_routers = options_.min_routers,
      .min_workers = options_.min_workers,
      .replicas = options_.replicas,
      .reduce = options_.reduce});
  const size_t max_bytes = static_cast<size_t>(options_.max_message_mib) << 20;
  FrameLimits limits;
  limits.max_bytes = max_bytes;
  service_ =
      std::make_unique<CoordinatorServiceImpl>(coordinator_.get(), limits);
  server_ = std::make_unique<ServerShell>(ServerOptions{
      .address = options_.listen,
      .reflection = options_.reflection,
      .max_message_bytes = max_bytes,
      .max_calls = options_.max_calls,
      .silence = absl::ToChronoMilliseconds(options_.lease),
      .max_connection_idle =
          absl::ToChronoMilliseconds(options_.max_connection_idle),
      .max_connection_age =
          absl::ToChronoMilliseconds(options_.max_connection_age)});
  server_->AddMetrics(metrics_);
  server_->AddService(service_.get(),
                      v1::CoordinatorService::service_full_name());
  server_->OnDrain(
      [this] { coordinator_->Drain(absl::Milliseconds(grace_ms_.load())); });
}

CoordinatorProcess::~CoordinatorProcess() {
  metrics_server_ = nullptr;
  server_ = nullptr;
  coordinator_->Shutdown();
}

absl::Status CoordinatorProcess::Start() {
  ASSIGN_OR_RETURN(
      security_, Security::CreateForServer(options_.security, options_.listen));
  security_->AddMetrics(metrics_);
  server_->UseSecurity(security_);
  if (!options_.metrics_address.empty()) {
    ASSIGN_OR_RETURN(metrics_server_,
                     MetricsServer::Start(options_.metrics_address, metrics_));
  }
  if (!options_.state_directory.empty()) {
    RETURN_IF_ERROR(coordinator_->Restore(options_.state_directory));
  }
  RETURN_IF_ERROR(server_->Start());
  server_->SetReady(true);
  LogInfo("coordinator serves", {{"address", address()},
                                 {"metrics", metrics_address()},
                                 {"version", kVersion}});
  return absl::OkStatus();
}

std::string CoordinatorProcess::metrics_address() const {
  return metrics_server_ == nullptr ? "" : metrics_server_->address();
}

void CoordinatorProcess::Drain(std::chrono::milliseconds grace,
                               std::chrono::milliseconds delay) {
  grace_ms_ = grace.count();
  server_->Drain(grace, delay);
}

absl::StatusOr<std::pair<std::string, std::string>> ParseModelFlag(
    absl::string_view text) {
  const std::pair<std::string, std::string> parts =
      absl::StrSplit(text, absl::MaxSplits('=', 1));
  if (parts.first.empty() || parts.second.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--model: expected NAME=DIR, got '", text, "'"));
  }
  return parts;
}

int RunCoordinator(const std::vector<std::string>& arguments) {
  CoordinatorFlags values;
  Flags flags = DeclareFlags(&values);
  const auto parse = [&]() -> absl::StatusOr<bool> {
    ASSIGN_OR_RETURN(const Flags::Result result, flags.Parse(arguments));
    ASSIGN_OR_RETURN(values.process.reduce, ReduceWayFromName(values.reduce));
    for (const std::string& model : values.models) {
      ASSIGN_OR_RETURN(const auto parts, ParseModelFlag(model));
      values.process.models.push_back(parts);
    }
    return result.help;
  };
  const absl::StatusOr<bool> help = parse();
  if (!help.ok()) {
    std::cerr << "gshard_coordinator: " << help.status().message() << "\n";
    return 2;
  }
  if (*help) {
    std::cout << flags.Help();
    return 0;
  }
  SetLogThreshold(SeverityOf(values.log_level));
  SetLogField({"role", "coordinator"});
  values.process.lease = absl::Milliseconds(values.lease_ms);
  CoordinatorProcess process(values.process);
  const std::chrono::seconds grace(values.drain_seconds);
  const auto delay = absl::ToChronoMilliseconds(values.drain_delay);
  SignalWatcher signals([&](int) { process.Drain(grace, delay); });
  const absl::Status started = process.Start();
  if (!started.ok()) {
    LogError("cannot start", {{"status", started}});
    return 1;
  }
  process.Wait();
  return 0;
}

}  // namespace gshard
