// RouterProcess: a complete router: sessions, batching, service and the process
// shell. `gshard_router` is one.

#ifndef ROUTER_ROUTER_PROCESS_H_
#define ROUTER_ROUTER_PROCESS_H_

#include <grpcpp/channel.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "router/batching/batcher.h"
#include "router/edge/translation_service.h"
#include "router/metrics/router_metrics.h"
#include "router/models/model_table.h"
#include "router/router_sessions.h"
#include "services/base/mutex.h"
#include "services/config/flags.h"
#include "services/config/process_options.h"
#include "services/graph/device.h"
#include "services/rpc/process/process_shell.h"

namespace gshard {

struct RouterOptions {
  ProcessOptions process;

  // The device for programs, by its name for OpenDevice, and opened, null for
  // the CPU.
  std::string device_name = "cpu";
  std::shared_ptr<Device> device;

  BatcherOptions batcher;    // `tracer` is ignored
  TranslationLimits limits;  // `preparer.max_bytes` is ignored
  // In place of the fields of other units above.
  absl::Duration max_wait = absl::Seconds(30);
  absl::Duration max_request_time = absl::Seconds(60);
  int64_t max_preparing_mib = PreparerLimits().max_bytes >> 20;
  bool per_expert_metrics = false;  // see RouterMetrics

  // A name or address of this machine at which other routers reach it to sum
  // gradients among themselves; empty: see HostOf.
  std::string reduce_host;
  // Replaces the rendezvous over the network, if set.
  RendezvousFactory make_rendezvous;

  // If set, used instead of process.coordinator.
  std::shared_ptr<grpc::Channel> coordinator_channel;
};

// Declares the flags of a router. `options` must outlive `flags`. The device of
// --device is opened by OpenDevice.
void AddRouterFlags(Flags& flags, RouterOptions* options);

class RouterProcess final : public ProcessShell {
 public:
  explicit RouterProcess(RouterOptions options);
  ~RouterProcess() override;

  // The name of the process's main service.
  static absl::string_view Service();

 private:
  class Commands;

  // Starts joining the coordinator; health becomes SERVING when it has joined,
  // that of the translation service when in addition all experts of every model
  // to serve were reachable once: experts lost later are reported in answers,
  // since taking all routers out of service would turn the loss into an outage.
  // A router that loses the coordinator keeps serving its models. Errors:
  // InvalidArgument if the coordinator's address is invalid.
  absl::Status Serve() override;
  // Says that it leaves, so that jobs, new models and new clients go to other
  // routers. A running microbatch is abandoned: the coordinator assigns it to
  // another router.
  void HandOver(MemberClient& member) override;
  // The coordinator tells it of workers that come and go, and releases nothing
  // that it calls.
  bool IsMemberUntilDrained() const override { return true; }
  void Finish(std::chrono::milliseconds grace) override;

  // Updates the health of the translation service from the served models and
  // reachable workers.
  void UpdateReadiness();
  void WatchReadiness();

  const RouterOptions options_;
  const RouterMetrics router_metrics_;
  ModelTable models_;
  Batcher batcher_;
  TranslationService service_;

  Mutex readiness_mutex_;
  bool ready_ ABSL_GUARDED_BY(readiness_mutex_) = false;  // as health was told

  std::unique_ptr<RouterSessions> sessions_;
  std::unique_ptr<Commands> commands_;
  std::thread readiness_thread_;  // WatchReadiness()
};

}  // namespace gshard

#endif  // ROUTER_ROUTER_PROCESS_H_
