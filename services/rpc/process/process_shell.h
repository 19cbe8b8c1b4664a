// ProcessShell: what the coordinator, routers and expert workers have in common
// around their services: metrics and their endpoint, security, the gRPC server,
// membership, and the lifecycle from Start() to the end of Drain(). One process
// may contain several shells.

#ifndef SERVICES_RPC_PROCESS_PROCESS_SHELL_H_
#define SERVICES_RPC_PROCESS_PROCESS_SHELL_H_

#include <grpcpp/channel.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "services/base/mutex.h"
#include "services/config/process_options.h"
#include "services/metrics/metrics.h"
#include "services/metrics/metrics_server.h"
#include "services/rpc/client/channel.h"
#include "services/rpc/process/member_client.h"
#include "services/rpc/process/span_collector.h"
#include "services/rpc/security/security.h"
#include "services/rpc/server/server.h"
#include "services/rpc/shared/shared_stream.h"
#include "services/rpc/wire/tracer.h"
#include "services/trace/span_exporter.h"

namespace gshard {

size_t MaxMessageBytes(const ProcessOptions& options);

// Thread-safe.
class ProcessShell {
 public:
  virtual ~ProcessShell() = default;

  ProcessShell(const ProcessShell&) = delete;
  ProcessShell& operator=(const ProcessShell&) = delete;

  // Starts the server, and calls Prepare() and Serve(). Does nothing after
  // Drain(). Errors: those of Security::CreateForServer, MetricsServer::Start,
  // ServerShell::Start, Prepare(), Serve() and SpanCollectorOf().
  absl::Status Start();

  // The server's address, with the port that was bound.
  const std::string& address() const { return server_->address(); }
  // Empty without a metrics endpoint.
  std::string metrics_address() const;
  std::string Metrics(MetricsFormat format = MetricsFormat::kText) const {
    return metrics_.Serialize(format);
  }

  // A channel to the server without sockets, even if it has no address.
  std::shared_ptr<grpc::Channel> InProcessChannel() {
    return server_->InProcessChannel();
  }

  // Turns health to NOT_SERVING, hands over what this process holds, leaves the
  // coordinator, accepts calls for another `delay`, finishes accepted calls
  // within `grace`, and ends the server. If IsMemberUntilDrained(), it leaves
  // the coordinator last. Later calls wait for the first to finish.
  void Drain(std::chrono::milliseconds grace,
             std::chrono::milliseconds delay = std::chrono::milliseconds(0));

  // Returns OK after Drain(), or earlier with the reason why the coordinator
  // will never accept this member.
  absl::Status Wait();

 protected:
  // `role` names the process in metrics and logs, e.g. "router".
  // `build_version` is reported to clients that ask for it.
  ProcessShell(const ProcessOptions& options, absl::string_view role,
               absl::string_view build_version);

  // The destructor of every derived class must call this first. Drains without
  // grace and without handing over, unless Drain() was called, and ends
  // everything that could still call virtual methods.
  void Close();

  // Called before the server listens; security() and the metrics exist already.
  virtual absl::Status Prepare() { return absl::OkStatus(); }
  // Called once the server listens.
  virtual absl::Status Serve() = 0;
  // Called by Drain() while this process is a member. Returns when nobody needs
  // what this process holds any more, or waiting for that is impossible.
  virtual void HandOver(MemberClient& member) { (void)member; }
  // Whether it leaves the coordinator only when its calls are finished, since
  // they need what the coordinator tells it.
  virtual bool IsMemberUntilDrained() const { return false; }
  // Called by Drain() after `delay`. Ends streams and finishes accepted calls
  // within `grace`.
  virtual void Finish(std::chrono::milliseconds grace) = 0;

  // Begins to join the coordinator of the options, or the one that `channel`
  // reaches if it is set. `handler` must outlive Close(). Errors: those of
  // MemberClient::Start.
  absl::Status Join(v1::MemberRole role, std::shared_ptr<grpc::Channel> channel,
                    int64_t memory_bytes, MemberHandler* handler,
                    absl::string_view device = {},
                    absl::string_view failure_domain = {});

  // The address for other processes; valid once the server listens.
  std::string AdvertisedAddress() const;

  // Makes Wait() return `status`.
  void End(const absl::Status& status);

  // Waits for `time` or until Wait() would return. Returns whether it would.
  bool EndsWithin(std::chrono::milliseconds time);

  gshard::Metrics& metrics() { return metrics_; }
  ServerShell& server() { return *server_; }
  // Records nothing without a collector, or before Start() has finished.
  const Tracer& tracer() const { return tracer_; }
  // Set by Start().
  const std::shared_ptr<Security>& security() const { return security_; }
  // Options of channels to other processes of the system; valid from Prepare()
  // on.
  ChannelOptions PeerChannelOptions() const;
  // Options of streams to peers on this machine.
  const SharingOptions& sharing() const { return sharing_; }

 private:
  void StartTracing(SpanCollector collector);
  // The process's name for others.
  std::string Name() const;
  void DrainAfter(bool hand_over, std::chrono::milliseconds grace,
                  std::chrono::milliseconds delay);
  bool ended() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return drained_ || !refused_.ok();
  }

  const ProcessOptions options_;
  const std::string role_;
  const std::string build_version_;
  const SharingOptions sharing_;
  gshard::Metrics metrics_;
  const Tracer tracer_ = Tracer::Create();
  std::shared_ptr<SpanExporter> exporter_;  // null: no collector
  std::shared_ptr<Security> security_;
  std::chrono::milliseconds grace_{0};  // of the first Drain()
  std::unique_ptr<ServerShell> server_;
  std::unique_ptr<MetricsServer> metrics_server_;
  std::unique_ptr<MemberClient> member_;

  Mutex start_mutex_;  // one Start() or Drain() at a time
  Mutex mutex_;
  CondVar ended_;
  bool drained_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status refused_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gshard

#endif  // SERVICES_RPC_PROCESS_PROCESS_SHELL_H_
