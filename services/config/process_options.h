// Flags shared by all server processes.

#ifndef SERVICES_CONFIG_PROCESS_OPTIONS_H_
#define SERVICES_CONFIG_PROCESS_OPTIONS_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "services/config/flags.h"
#include "services/config/security_options.h"

namespace gshard {

// Where to send spans, and of which traces.
struct TraceOptions {
  // OTLP over HTTP; empty: from the environment, or none.
  std::string otlp_endpoint = {};
  // File of headers for ParseOtlpHeaders(); empty: from the environment.
  std::string otlp_headers_file = {};
  double sample_ratio = 0.01;  // share of traces that begin here
};

// The least for max_message_mib. Members send tensors in messages of 1 MiB and
// a header (kFramePayloadBytes); with less no tensor of more would get through.
inline constexpr int64_t kLeastMessageMib = 2;

struct ProcessOptions {
  std::string listen = "127.0.0.1:7000";
  std::string metrics_address = {};  // empty: no metrics
  bool reflection = false;
  int64_t max_message_mib = 64;
  int64_t max_calls = 8192;  // see ServerOptions
  // See MeterLimits.
  int64_t max_connections = 4096;
  int64_t max_peer_connections = 256;
  int64_t max_held_mib = 16;
  int64_t drain_seconds = 30;
  // After SIGTERM: health says NOT_SERVING, calls are still accepted.
  absl::Duration drain_delay = absl::ZeroDuration();
  // The exit code after a signal is 128 and its number, not 0.
  bool exit_as_killed = false;
  // Limits of connections; zero: none. See ServerOptions.
  absl::Duration max_connection_idle = absl::Minutes(10);
  absl::Duration max_connection_age = absl::ZeroDuration();
  int64_t threads = 0;  // compute threads, see parallel.h; 0: CpuLimit()
  std::string log_level = "info";
  SecurityOptions security = {};
  // The object store of s3:// paths; empty: from the environment. See
  // ObjectStoreOptions.
  std::string s3_endpoint = {};
  std::string s3_region = {};
  TraceOptions trace = {};
  // "no": the process serves. Otherwise it asks the process that was started
  // with the same flags whether it is "live", "joined" or "ready"; see Probe().
  std::string probe = "no";

  // For members, that is, routers and expert workers.
  std::string coordinator = {};
  std::string advertise = {};  // empty: see AdvertisedAddress
  std::string name = {};       // empty: see MemberName
  int64_t lease_ms = 5000;
  int64_t training_share = 12;     // percent
  int64_t shared_memory_mib = 64;  // see SharingOptions; 0: none
};

// Declares --otlp_endpoint, --otlp_headers_file and --trace_sample_ratio.
void AddTraceFlags(Flags& flags, TraceOptions* options);

// Declares --s3_endpoint and --s3_region; see ObjectStoreOptions.
void AddObjectStoreFlags(Flags& flags, std::string* endpoint,
                         std::string* region);

// Declares --listen, --metrics_address, --reflection, --max_message_mib,
// --max_calls, --max_connections, --max_peer_connections, --max_held_mib,
// --drain_seconds, --drain_delay, --exit_as_killed, --max_connection_idle,
// --max_connection_age, --threads, --log_level, --probe and the flags of
// AddObjectStoreFlags, AddTraceFlags and AddServerSecurityFlags. `options` must
// outlive `flags`.
void AddProcessFlags(Flags& flags, ProcessOptions* options);

// Declares --coordinator, --advertise, --name, --lease_ms, --training_share and
// --shared_memory_mib.
void AddMemberFlags(Flags& flags, ProcessOptions* options);

// Sets the process's log level.
void ApplyLogLevel(const ProcessOptions& options);

// Address at which others reach a process that listens at `listening`:
// --advertise, or else `listening`, with the host name in place of 0.0.0.0 or
// [::].
std::string AdvertisedAddress(const ProcessOptions& options,
                              absl::string_view listening);

// --name, or else "<role>-<machine>-<port>", or "<role>-<file name>" for a unix
// socket. Characters that names may not have become '-'.
std::string MemberName(const ProcessOptions& options, absl::string_view role,
                       absl::string_view advertised);

}  // namespace gshard

#endif  // SERVICES_CONFIG_PROCESS_OPTIONS_H_
