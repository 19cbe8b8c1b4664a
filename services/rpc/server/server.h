// ServerShell: everything of a process's gRPC server except its services:
// address, limits, health, reflection, and an orderly shutdown.
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
// everybody; see method_roles.h for other methods, and call_info.h for the call
// information that handlers and logs get.
//
// The memory for incomplete messages of clients is bounded, see
// connection_watch.h. On unix sockets, which file permissions protect, only the
// limits of calls, flow-control windows and request time bound it.

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

  // Maximum in either direction, at least 1 KiB and below 2 GiB. Messages are
  // never compressed.
  size_t max_message_bytes = kDefaultMaxMessageBytes;

  // Maximum open calls of one connection; further ones wait at the client. At
  // least 1.
  int max_calls_per_connection = 256;

  // Maximum calls in progress, over all connections. Further ones get
  // UNAVAILABLE before a handler sees them; so do those of a known caller
  // that would exceed twice what it leaves free, see call_count.h. Calls whose
  // requests are still being read and health checks do not count, and calls
  // that only members may make are never refused. At least 1.
  int64_t max_calls = 8192;

  // Limits of the memory held for clients and of the time for a request.
  MeterLimits limits = {};

  // A client that is silent for this long is considered gone, with all its
  // calls. From 100 ms to an hour.
  std::chrono::milliseconds silence = kDefaultSilence;
  // A connection without calls is closed after `max_connection_idle`; clients
  // reconnect when needed. A connection older than `max_connection_age` takes
  // no new calls, and its open calls continue. Zero: no limit; otherwise 1 s or
  // more.
  std::chrono::milliseconds max_connection_idle{600'000};
  std::chrono::milliseconds max_connection_age{0};
};

// Thread-safe after Start().
class ServerShell {
 public:
  explicit ServerShell(ServerOptions options);

  // Drains without grace unless Drain() was called.
  ~ServerShell();

  ServerShell(const ServerShell&) = delete;
  ServerShell& operator=(const ServerShell&) = delete;

  // `name` is the service's full name, e.g.
  // v1::TranslationService::service_full_name(); health answers for it.
  // `service` is not owned and must outlive the shell; it must be a RawService
  // except in tests. Call before Start().
  void AddService(grpc::Service* service, absl::string_view name);

  // Sets up TLS and access control. Without it, callers are anonymous and may
  // call everything, and `address` must not be reachable from other machines.
  // Call before Start().
  void UseSecurity(std::shared_ptr<const Security> security);

  // Calls become spans of `tracer`. Call before Start().
  void UseTracer(Tracer tracer) { tracer_ = std::move(tracer); }

  // Adds metrics: the calls in progress, and those refused because of
  // max_calls. Call once, before Start(); `metrics` must outlive the shell.
  void AddMetrics(Metrics& metrics);

  // Drain() calls `callback`, in the order of registration, after health has
  // turned to NOT_SERVING and before the server stops listening. Use it to
  // finish accepted work and to end long-lived streams. Call before Start().
  void OnDrain(std::function<void()> callback);

  // Binds and serves.
  //
  // Errors: InvalidArgument if the options are invalid or the security options
  // do not allow `address`; AlreadyExists if another live server has the unix
  // socket; FailedPrecondition if the socket's path is something other than a
  // socket; Unavailable if the address cannot be bound. A socket that a dead
  // server left behind is replaced.
  absl::Status Start();

  // The address, with the port that was bound, e.g. "0.0.0.0:43017".
  const std::string& address() const { return address_; }

  // Turns health to SERVING, or back to NOT_SERVING. No effect once draining.
  void SetReady(bool ready);

  // The same for one service, which SetReady() does not change from then on.
  void SetServiceReady(absl::string_view service, bool ready);

  // Turns health to NOT_SERVING for good, before work that precedes Drain().
  void EndReadiness();

  // A channel without sockets, for tests. Begin no call on it after Drain():
  // gRPC 1.51 would crash instead of failing the call.
  std::shared_ptr<grpc::Channel> InProcessChannel();

  // Ends the server. Health turns to NOT_SERVING; the server continues for
  // `delay`, so that callers notice and switch to another; the OnDrain
  // callbacks run, new calls are refused, and calls in progress may continue
  // for `grace`, counted from the end of the delay, before they are cancelled.
  // Returns when all are over; handlers of streams may be called a little later
  // (see stream.h). If called again, waits for the first call to finish.
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
