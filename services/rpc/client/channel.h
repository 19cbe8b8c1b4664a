// The client side of gRPC: addresses, channels and deadlines.

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

// How long a peer may be silent before it counts as lost, unless configured
// otherwise. The same for leases and connections: a process that is paused for
// less loses neither.
inline constexpr std::chrono::milliseconds kDefaultSilence{5'000};

// Keeps gRPC's library initialized until the process ends. Otherwise it would
// shut down with its last object, which can take 10 s and races with calls that
// are just ending. Has its lines logged as ours. Sets
// GRPC_CLIENT_CHANNEL_BACKUP_POLL_INTERVAL_MS unless it is set, so main()
// should call this before it starts threads; CreateChannel() and ServerShell
// call it in any case.
void KeepGrpcRunning();

struct ChannelOptions {
  // In either direction. At least 1 KiB, below 2 GiB.
  size_t max_message_bytes = kDefaultMaxMessageBytes;

  // TLS and the token for the calls; null for neither.
  std::shared_ptr<const Security> security = nullptr;

  // TLS with whoever answers: the server's certificate is not looked at, and
  // none of this process is shown. For calls that neither tell nor believe
  // much, such as health probes. Requires that `security` is null.
  bool unverified_tls = false;

  // Tunes flow control for messages of a megabyte and more (parameters,
  // gradients), at the cost of latency for small ones.
  bool bulk = false;

  // A connection whose peer sends nothing for this long counts as lost, and
  // with it all of its calls (UNAVAILABLE). At least 100 ms, at most an hour.
  std::chrono::milliseconds silence = kDefaultSilence;
};

// A connection to `address`, established on first use and again whenever it is
// lost, with a backoff of 0.1 to 1 s, in which a name is resolved again, too;
// at longer intervals if it had no address. A silent peer is detected, also
// between calls, after `silence` plus at most a fifth of it (or a second). Two
// channels never share a connection. Proxies from the environment are not used.
// Calls carry the token of options.security, if there is one. Errors:
// InvalidArgument, also if a token would travel unencrypted.
absl::StatusOr<std::shared_ptr<grpc::Channel>> CreateChannel(
    absl::string_view address, const ChannelOptions& options = {});

// Deadline of every unary call without an explicit one; gRPC itself sets none.
inline constexpr std::chrono::milliseconds kDefaultDeadline{30'000};

// Sets the deadline to `timeout` from now. With `wait_for_ready` the call is
// queued until the peer can be reached; otherwise it fails at once with
// UNAVAILABLE. Propagates the thread's current trace. Call once for each call.
void SetDeadline(grpc::ClientContext& context,
                 std::chrono::milliseconds timeout = kDefaultDeadline,
                 bool wait_for_ready = false);

// The time left until a call's deadline, for the next hop: at least 0, at most
// `most`; `most` if the call has no deadline.
std::chrono::milliseconds RemainingTime(
    std::chrono::system_clock::time_point deadline,
    std::chrono::milliseconds most);

}  // namespace gshard

#endif  // SERVICES_RPC_CLIENT_CHANNEL_H_
