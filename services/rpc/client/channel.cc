#include "services/rpc/client/channel.h"

#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>
#include <malloc.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "services/base/check.h"
#include "services/base/log.h"
#include "services/base/log_budget.h"
#include "services/base/status_macros.h"
#include "services/rpc/security/client_credentials.h"
#include "services/rpc/security/security.h"
#include "services/rpc/wire/trace_scope.h"

namespace gshard {
namespace {

// sizeof(sockaddr_un::sun_path) without the terminating zero.
constexpr size_t kMaxSocketPath = 107;

constexpr int64_t kGrpcLinesPerSecond = 5;

absl::Status BadAddress(absl::string_view address, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("address must be \"host:port\" or \"unix:/path\", got \"",
                   address, "\": ", why));
}

// Lines of gRPC become ours. What fails is often a peer's affair, such as a
// handshake, and as frequent as that pleases; the rest is asked for by
// GRPC_VERBOSITY.
void WriteGrpcLine(gpr_log_func_args* line) {
  static LogBudget budget(kGrpcLinesPerSecond);
  if (line->severity != GPR_LOG_SEVERITY_ERROR) {
    return LogInfo("gRPC reports", {{"text", line->message}});
  }
  const auto left_out = budget.Take();
  if (!left_out.has_value()) return;
  LogWarning("gRPC reports",
             {{"text", line->message}, {"lines_left_out", *left_out}});
}

}  // namespace

absl::Status ValidateAddress(absl::string_view address, int lowest_port) {
  absl::string_view path = address;
  if (absl::ConsumePrefix(&path, "unix:")) {
    if (path.empty()) return BadAddress(address, "the path is empty");
    if (absl::StartsWith(path, "//")) path.remove_prefix(2);
    if (path.size() > kMaxSocketPath) {
      return BadAddress(
          address,
          absl::StrCat("the path has ", path.size(),
                       " bytes, a socket's may have at most ", kMaxSocketPath));
    }
    return absl::OkStatus();
  }
  const size_t colon = address.rfind(':');
  if (colon == absl::string_view::npos) {
    return BadAddress(address, "there is no port");
  }
  const absl::string_view host = address.substr(0, colon);
  if (host.empty()) return BadAddress(address, "there is no host");
  if (absl::StrContains(host, ":") &&
      (host.front() != '[' || host.back() != ']')) {
    return BadAddress(address, "an IPv6 host must stand in brackets");
  }
  const absl::string_view port_text = address.substr(colon + 1);
  const bool digits = !port_text.empty() &&
                      std::all_of(port_text.begin(), port_text.end(),
                                  [](char c) { return '0' <= c && c <= '9'; });
  int port = 0;
  if (!digits || !absl::SimpleAtoi(port_text, &port) || port < lowest_port ||
      port > 65535) {
    return BadAddress(address, absl::StrCat("the port must be a number from ",
                                            lowest_port, " to 65535"));
  }
  return absl::OkStatus();
}

void KeepGrpcRunning() {
  [[maybe_unused]] static const bool running = [] {
    gpr_set_log_function(WriteGrpcLine);
    // gRPC 1.51 polls what no thread polls for itself, such as a channel that
    // connects while a call waits, only every 5 s by default.
    setenv("GRPC_CLIENT_CHANNEL_BACKUP_POLL_INTERVAL_MS", "100",
           /*overwrite=*/0);
    // gRPC receives into buffers of up to 4 MiB, which one thread allocates and
    // another frees. By default malloc would return most of them to the system,
    // which maps and clears each anew.
    mallopt(M_MMAP_THRESHOLD, 8 << 20);
    mallopt(M_TRIM_THRESHOLD, 16 << 20);
    grpc_init();
    return true;
  }();
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> CreateChannel(
    absl::string_view address, const ChannelOptions& options) {
  RETURN_IF_ERROR(ValidateAddress(address));
  if (options.max_message_bytes < 1024 ||
      options.max_message_bytes > size_t{INT32_MAX}) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_message_bytes must be from 1024 to ", INT32_MAX,
                     ", got ", options.max_message_bytes));
  }
  if (options.silence < std::chrono::milliseconds(100) ||
      options.silence > std::chrono::hours(1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("silence must be from 100 ms to an hour, got ",
                     options.silence.count(), " ms"));
  }
  // A token would go to whoever answers.
  CHECK(!options.unverified_tls || options.security == nullptr);
  if (options.security != nullptr) {
    RETURN_IF_ERROR(
        ValidateClientSecurity(options.security->options(), address));
  }
  KeepGrpcRunning();
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(
      static_cast<int>(options.max_message_bytes));
  arguments.SetMaxSendMessageSize(static_cast<int>(options.max_message_bytes));
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  // As often the address is asked for again: a process that was started on
  // another machine has another. gRPC would do so every 30 s at most.
  arguments.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, 1000);
  // Send a ping after a fifth of the time without data (gRPC sends at most one
  // a second), and wait the whole time for the answer.
  const int silence = static_cast<int>(options.silence.count());
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, silence / 5);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, silence);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // The flow-control window. With bandwidth probes off and large HTTP/2 frames,
  // messages of a megabyte and more cost up to a third less CPU, but small ones
  // wait longer.
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 32 << 20);
  if (options.bulk) {
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 4 << 20);
  }
  arguments.SetInt(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
  const std::string target(address);
  const std::shared_ptr<grpc::ChannelCredentials> credentials =
      options.unverified_tls ? UnverifiedCredentials()
      : options.security == nullptr
          ? grpc::InsecureChannelCredentials()
          : ClientCredentials(*options.security, target, arguments);
  return grpc::experimental::CreateCustomChannelWithInterceptors(
      target, credentials, arguments, TokenInterceptors(options.security));
}

void SetDeadline(grpc::ClientContext& context,
                 std::chrono::milliseconds timeout, bool wait_for_ready) {
  context.set_deadline(std::chrono::system_clock::now() + timeout);
  context.set_wait_for_ready(wait_for_ready);
  if (CurrentTraces().empty()) return;
  const TraceContext& trace = CurrentTraces().front();
  context.AddMetadata("traceparent", trace.Traceparent());
  if (!trace.state.empty()) context.AddMetadata("tracestate", trace.state);
}

std::chrono::milliseconds RemainingTime(
    std::chrono::system_clock::time_point deadline,
    std::chrono::milliseconds most) {
  const auto now = std::chrono::system_clock::now();
  if (deadline <= now) return std::chrono::milliseconds(0);
  // gRPC represents "no deadline" by the end of time.
  if (deadline - now >= most) return most;
  return std::chrono::duration_cast<std::chrono::milliseconds>(deadline - now);
}

}  // namespace gshard
