// RoutingExplainer: serves ExplainRouting, one call at a time, on a thread of
// its own: gRPC's threads bring the workers' replies and must not wait for
// them.

#ifndef ROUTER_ROUTING_EXPLAINER_H_
#define ROUTER_ROUTING_EXPLAINER_H_

#include <chrono>
#include <functional>
#include <mutex>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/gshard/v1/translation.pb.h"
#include "router/model_table.h"

namespace gshard {

// Thread-safe.
class RoutingExplainer {
 public:
  using Done = std::function<void(absl::StatusOr<v1::ExplainRoutingResponse>)>;

  // `models` is not owned. Calls are refused unless `enabled`.
  RoutingExplainer(const ModelTable* models, bool enabled);
  // Stops the call that runs.
  ~RoutingExplainer();

  // Calls `done` once, on any thread. Errors as translation.proto says.
  void Explain(v1::ExplainRoutingRequest request,
               std::chrono::steady_clock::time_point deadline, Done done);

 private:
  const ModelTable* const models_;
  const bool enabled_;
  Cancellation stop_;
  std::mutex mutex_;
  bool busy_ = false;   // guarded by mutex_
  std::thread thread_;  // guarded by mutex_
};

}  // namespace gshard

#endif  // ROUTER_ROUTING_EXPLAINER_H_
