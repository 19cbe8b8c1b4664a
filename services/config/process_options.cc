#include "services/config/process_options.h"

#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "services/base/log.h"
#include "services/base/name.h"

namespace gshard {
namespace {

std::string MachineName() {
  char name[256] = {};
  if (gethostname(name, sizeof(name) - 1) != 0 || name[0] == '\0') {
    return "localhost";
  }
  return name;
}

}  // namespace

void AddTraceFlags(Flags& flags, TraceOptions* options) {
  flags.Text("otlp_endpoint", &options->otlp_endpoint, "URL",
             "collector that takes spans of traces by OTLP over HTTP, such as "
             "http://host:4318; empty: OTEL_EXPORTER_OTLP_ENDPOINT, or none");
  flags.Text("otlp_headers_file", &options->otlp_headers_file, "FILE",
             "headers that the collector wants, such as a key, a line "
             "name=value each; left out: OTEL_EXPORTER_OTLP_HEADERS, or none");
  flags.Real("trace_sample_ratio", &options->sample_ratio,
             Interval::Closed(0, 1),
             "share of the traces that begin here that are recorded; of those "
             "that callers have begun, their sampled bit decides");
}

void AddObjectStoreFlags(Flags& flags, std::string* endpoint,
                         std::string* region) {
  flags.Text("s3_endpoint", endpoint, "URL",
             "where the object store of s3:// paths is; empty: "
             "AWS_ENDPOINT_URL, or Amazon's");
  flags.Text("s3_region", region, "REGION",
             "region of the object store; empty: AWS_REGION, or us-east-1");
}

void AddProcessFlags(Flags& flags, ProcessOptions* options) {
  flags.Text("listen", &options->listen, "ADDRESS",
             "address to serve at: host:port or unix:/path");
  flags.Text("metrics_address", &options->metrics_address, "HOST:PORT",
             "address to serve /metrics at; empty for none");
  flags.Bool("reflection", &options->reflection,
             "let tools such as grpcurl list the services");
  flags.Integer("max_message_mib", &options->max_message_mib, kLeastMessageMib,
                2047,
                "largest message in either direction, in MiB; members send "
                "tensors in messages of a little more than 1");
  flags.Integer("max_calls", &options->max_calls, 1, 1 << 24,
                "calls that may be under way; more are refused");
  flags.Integer("max_connections", &options->max_connections, 1, 1 << 20,
                "TCP connections that may be open; more are closed at once");
  flags.Integer("max_peer_connections", &options->max_peer_connections, 1,
                1 << 20,
                "those from one host; raise it behind a proxy that makes one "
                "for each client");
  flags.Integer("max_held_mib", &options->max_held_mib, 1, 1 << 20,
                "MiB of incomplete messages of all callers but members; who "
                "sends most of them is disconnected when it is more");
  flags.Integer("drain_seconds", &options->drain_seconds, 0, 86400,
                "time for calls in progress after SIGTERM, and for the step "
                "and checkpoint of a coordinator's job");
  flags.Duration("drain_delay", &options->drain_delay,
                 "time after SIGTERM in which health says NOT_SERVING and new "
                 "calls are still accepted, so that callers go elsewhere");
  flags.Bool("exit_as_killed", &options->exit_as_killed,
             "end with 143 after SIGTERM instead of 0: a Job of Kubernetes "
             "takes 0 for done, and starts the process on no other node when "
             "its own is drained");
  flags.Duration("max_connection_idle", &options->max_connection_idle,
                 "closes connections without calls after this time; 0: never");
  flags.Duration("max_connection_age", &options->max_connection_age,
                 "takes no new calls on a connection after this time, so that "
                 "clients connect again; 0: no limit");
  flags.Integer("threads", &options->threads, 0, 1024,
                "threads that compute a kernel together; 0: as many as CPUs "
                "that the process may use. Results do not depend on it");
  flags.Choice("log_level", &options->log_level,
               {"debug", "info", "warning", "error"},
               "least severity of log lines");
  AddObjectStoreFlags(flags, &options->s3_endpoint, &options->s3_region);
  AddTraceFlags(flags, &options->trace);
  flags.Choice("probe", &options->probe, {"no", "live", "joined", "ready"},
               "instead of serving, asks the process that was started with the "
               "same flags whether it answers, takes part, or can do its work; "
               "the exit code is 0 if so");
  AddServerSecurityFlags(flags, &options->security);
}

void AddMemberFlags(Flags& flags, ProcessOptions* options) {
  flags.Text("coordinator", &options->coordinator, "ADDRESS",
             "where the coordinator serves");
  flags.Require("coordinator");
  flags.Text("advertise", &options->advertise, "ADDRESS",
             "address told to others; by default where it listens");
  flags.Text("name", &options->name, "NAME",
             "name among the members; by default made of the address");
  flags.Integer("lease_ms", &options->lease_ms, 100, 3'600'000,
                "milliseconds of silence after which a peer is taken for lost; "
                "give the coordinator the same");
  flags.Integer("training_share", &options->training_share, 1, 50,
                "percent of a core that training gets while translations want "
                "all of it; what they leave it gets anyway");
  flags.Integer("shared_memory_mib", &options->shared_memory_mib, 0, 1 << 20,
                "MiB of memory that may be shared with peers on this machine, "
                "so that rows for experts and back go around the kernel: some "
                "2 for each connection between a router and an expert worker; "
                "others, or all if it is 0, use sockets");
}

void ApplyLogLevel(const ProcessOptions& options) {
  LogSeverity severity = LogSeverity::kInfo;
  if (options.log_level == "debug") severity = LogSeverity::kDebug;
  if (options.log_level == "warning") severity = LogSeverity::kWarning;
  if (options.log_level == "error") severity = LogSeverity::kError;
  SetLogThreshold(severity);
}

std::string AdvertisedAddress(const ProcessOptions& options,
                              absl::string_view listening) {
  if (!options.advertise.empty()) return options.advertise;
  for (const absl::string_view any : {"0.0.0.0:", "[::]:"}) {
    if (!absl::StartsWith(listening, any)) continue;
    return absl::StrCat(MachineName(), ":", listening.substr(any.size()));
  }
  return std::string(listening);
}

std::string MemberName(const ProcessOptions& options, absl::string_view role,
                       absl::string_view advertised) {
  if (!options.name.empty()) return options.name;
  std::string name = absl::StrCat(role, "-");
  if (absl::StartsWith(advertised, "unix:")) {
    const size_t slash = advertised.rfind('/');
    const size_t begin = slash == absl::string_view::npos ? 5 : slash + 1;
    absl::StrAppend(&name, advertised.substr(begin));
  } else {
    absl::StrAppend(&name, MachineName(), "-",
                    advertised.substr(advertised.rfind(':') + 1));
  }
  for (char& c : name) {
    if (!IsNameCharacter(c)) c = '-';
  }
  return name.substr(0, kMaxNameBytes);
}

}  // namespace gshard
