// Addresses, channels and deadlines: the calling side of gRPC.

#ifndef SERVICES_RPC_CLIENT_CHANNEL_H_
#define SERVICES_RPC_CLIENT_CHANNEL_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "services/rpc/wire/message_limits.h"

namespace gshard {

class Security;

// OK if `address` is "unix:/path", "unix:path" (at most 107 bytes of path) or
// "host:port" with a port from `lowest_port` to 65535; IPv6 hosts in brackets.
// Errors: InvalidArgument.
absl::Status ValidateAddress(absl::string_view address, int lowest_port = 1);

// How long a peer may be silent before it is taken for lost, unless configured
// otherwise. The same for leases and for connections: a process that is paused
// for less loses neither.
inline constexpr std::chrono::milliseconds kDefaultSilence{5'000};

// Keeps gRPC's library running until the process ends: it would stop with its
// last object, which can take 10 s and races with calls that are just ending.
// Sets GRPC_CLIENT_CHANNEL_BACKUP_POLL_INTERVAL_MS unless it is set, so main()
// calls it before there are threads; else CreateChannel() and ServerShell do.
void KeepGrpcRunning();

struct ChannelOptions {
  // Either direction. At least 1 KiB, below 2 GiB.
  size_t max_message_bytes = kDefaultMaxMessageBytes;

  // TLS and a token for the calls; null: neither.
  std::shared_ptr<const Security> security = nullptr;

  // Tunes flow control for messages of a megabyte and more (parameters,
  // gradients), at the cost of latency for small ones.
  bool bulk = false;

  // A connection whose peer answers nothing for so long is lost, and with it
  // all calls on it (UNAVAILABLE). At least 100 ms.
  std::chrono::milliseconds silence = kDefaultSilence;
};

// A connection to `address`, made when first used and made again, with 0.1 to 1
// s of backoff, when lost. A silent peer is noticed, also between calls, after
// `silence` and at most a fifth of it (or a second) more. Two
// channels never share a connection. Proxies of the environment are not used.
// A call carries the token of options.security, if there is one.
// Errors: InvalidArgument, also if a token would travel unencrypted.
absl::StatusOr<std::shared_ptr<grpc::Channel>> CreateChannel(
    absl::string_view address, const ChannelOptions& options = {});

// gRPC sets no deadline by itself, so every unary call of ours gets one.
inline constexpr std::chrono::milliseconds kDefaultDeadline{30'000};

// Ends the call `timeout` from now. Queues the call until the peer can be
// reached if `wait_for_ready`, instead of failing at once with UNAVAILABLE.
// Hands on the trace that the thread works for. Once for each call.
void SetDeadline(grpc::ClientContext& context,
                 std::chrono::milliseconds timeout = kDefaultDeadline,
                 bool wait_for_ready = false);

// What is left of a call's deadline, for the next hop: at least 0, at most
// `most`; `most` if the call has none.
std::chrono::milliseconds RemainingTime(
    std::chrono::system_clock::time_point deadline,
    std::chrono::milliseconds most);

}  // namespace gshard

#endif  // SERVICES_RPC_CLIENT_CHANNEL_H_
