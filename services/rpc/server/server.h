// ServerShell: what every process's gRPC server has besides its services:
// address, limits, health, reflection, and an orderly end.
//
//   ServerShell server({.address = "0.0.0.0:7400"});
//   server.AddService(&translation_service,
//                     v1::TranslationService::service_full_name());
//   server.OnDrain([&] { router_service.FinishAccepted(); });
//   RETURN_IF_ERROR(server.Start());
//   LoadEverything();
//   server.SetReady(true);
//   SignalWatcher signals([&](int) { server.Drain(30s); });
//   server.Wait();
//
// Health (grpc.health.v1) answers for "" and for each service: NOT_SERVING
// until SetReady(true), and for good once Drain() has begun. It is open to
// everybody; for other methods see method_roles.h, and call_info.h for what
// handlers and logs are told of a call.
//
// The memory for incomplete messages of clients is bounded, see
// connection_watch.h; over unix sockets, which file permissions protect, only
// by the limits of calls, windows and request time.

#ifndef SERVICES_RPC_SERVER_SERVER_H_
#define SERVICES_RPC_SERVER_SERVER_H_

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "services/base/mutex.h"
#include "services/metrics/metrics.h"
#include "services/rpc/client/channel.h"
#include "services/rpc/security/security.h"
#include "services/rpc/server/call_guard.h"
#include "services/rpc/server/connection_watch.h"
#include "services/rpc/server/health_service.h"
#include "services/rpc/wire/tracer.h"

namespace gshard {

struct ServerOptions {
  // "host:port" (port 0: any free one), "unix:/path", or empty for a server
  // that only InProcessChannel() reaches.
  std::string address = {};

  // Lets tools such as grpcurl list the services.
  bool reflection = false;

  // Either direction; none is compressed. At least 1 KiB, below 2 GiB.
  size_t max_message_bytes = kDefaultMaxMessageBytes;

  // Calls that one connection may have open; more wait on the client's side. At
  // least 1.
  int max_calls_per_connection = 256;

  // While so many calls are under way, over all connections, others that arrive
  // get UNAVAILABLE before their requests are read; so do those of a known
  // caller that has twice as many as it leaves free, see call_count.h. Those
  // whose requests are being read, and health checks, do not count, and members
  // are not refused what only they may call. At least 1.
  int64_t max_calls = 8192;

  // What may be held for clients, and how long a request may take.
  MeterLimits limits = {};

  // A client that is silent for this long is considered gone, with all its
  // calls. From 100 ms to an hour.
  std::chrono::milliseconds silence = kDefaultSilence;
  // A connection without calls is closed after `idle`, and clients make another
  // when they need it; one that is older than `age` takes no new calls, and its
  // calls may go on. Zero: no limit; else at least 1 s.
  std::chrono::milliseconds max_connection_idle{600'000};
  std::chrono::milliseconds max_connection_age{0};
};

// Thread-safe after Start().
class ServerShell {
 public:
  explicit ServerShell(ServerOptions options);

  // Drains with no grace if nobody has.
  ~ServerShell();

  ServerShell(const ServerShell&) = delete;
  ServerShell& operator=(const ServerShell&) = delete;

  // `name` is the service's, e.g. v1::TranslationService::service_full_name();
  // health answers for it. Not owned; must outlive the shell. A RawService
  // unless it is for a test. Call before Start().
  void AddService(grpc::Service* service, absl::string_view name);

  // TLS, and who may call what. Without it callers are anonymous, may call
  // everything, and `address` must be one of this machine only. Call before
  // Start().
  void UseSecurity(std::shared_ptr<const Security> security);

  // Calls become spans of `tracer`. Call before Start().
  void UseTracer(Tracer tracer) { tracer_ = std::move(tracer); }

  // The number of calls under way, and of those that max_calls has cost. Call
  // before Start(), once; `metrics` must outlive the shell.
  void AddMetrics(Metrics& metrics);

  // Called by Drain(), in the order of registration, after health has turned
  // and before the server stops listening: finish what was accepted, end
  // long-lived streams. Call before Start().
  void OnDrain(std::function<void()> callback);

  // Binds and serves.
  //
  // Errors: InvalidArgument if the options are not valid or those of security
  // do not allow `address`; AlreadyExists if a
  // live server has the unix socket; FailedPrecondition if the socket's path is
  // taken by something else than a socket; Unavailable if the address cannot be
  // bound. The socket of a server that died is replaced.
  absl::Status Start();

  // Where it listens, with the port that was bound, e.g. "0.0.0.0:43017".
  const std::string& address() const { return address_; }

  // Turns health to SERVING, or back to NOT_SERVING. No effect once draining.
  void SetReady(bool ready);

  // The same for one service alone, which SetReady() leaves alone from then on.
  void SetServiceReady(absl::string_view service, bool ready);

  // Turns health to NOT_SERVING for good, for what has to be done before
  // Drain().
  void EndReadiness();

  // A channel without sockets, for tests. Begin no call on it after Drain():
  // gRPC 1.51 crashes where it should fail.
  std::shared_ptr<grpc::Channel> InProcessChannel();

  // Ends the server: health turns to NOT_SERVING; for `delay` all goes on, so
  // that callers notice and go elsewhere; the OnDrain callbacks run, new calls
  // are refused, calls in progress may go on for `grace`, which begins after
  // the delay, and are then cancelled. Returns when they are over; handlers of
  // streams may be told a little later (see stream.h). Later calls wait for the
  // first.
  void Drain(std::chrono::milliseconds grace,
             std::chrono::milliseconds delay = std::chrono::milliseconds(0));

  // Returns after Drain().
  void Wait();

 private:
  const ServerOptions options_;
  std::shared_ptr<const Security> security_;
  const std::shared_ptr<CallGate> gate_;
  Tracer tracer_;
  std::vector<grpc::Service*> services_;
  std::vector<std::string> service_names_;
  HealthService health_;
  std::set<std::string> own_readiness_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::function<void()>> drain_callbacks_;
  std::string address_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::unique_ptr<grpc::Server> server_;

  Mutex mutex_;
  CondVar drained_;
  enum {
    kIdle,
    kServing,
    kDraining,
    kDrained
  } state_ ABSL_GUARDED_BY(mutex_) = kIdle;
};

}  // namespace gshard

#endif  // SERVICES_RPC_SERVER_SERVER_H_
