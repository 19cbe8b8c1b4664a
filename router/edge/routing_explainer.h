// RoutingExplainer: serves ExplainRouting, one call at a time, on its own
// thread: gRPC's threads deliver the workers' replies and must not wait for
// them.

#ifndef ROUTER_EDGE_ROUTING_EXPLAINER_H_
#define ROUTER_EDGE_ROUTING_EXPLAINER_H_

#include <grpcpp/support/byte_buffer.h>

#include <chrono>
#include <functional>
#include <memory>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/gshard/v1/translation.pb.h"
#include "router/models/cancellation.h"
#include "router/models/model_access.h"
#include "services/base/mutex.h"
#include "services/rpc/security/caller.h"
#include "services/rpc/wire/trace_context.h"

namespace gshard {

// Thread-safe.
class RoutingExplainer {
 public:
  using Done = std::function<void(absl::StatusOr<v1::ExplainRoutingResponse>)>;

  struct Call {
    grpc::ByteBuffer request;  // an ExplainRoutingRequest
    Caller user;               // must have a right to the model
    std::chrono::steady_clock::time_point deadline;
    TraceContext trace = {};             // for logs and workers; may be empty
    std::shared_ptr<Cancellation> stop;  // set: nobody waits any more
    Done done;                           // called once, on any thread
  };

  // `models` is not owned. Calls are refused unless `enabled`.
  RoutingExplainer(const ModelTable* models, bool enabled);
  // Stops the running call.
  ~RoutingExplainer();

  // Errors: see translation.proto; Cancelled soon after call.stop is set.
  void Explain(Call call);

 private:
  const ModelTable* const models_;
  const bool enabled_;
  Mutex mutex_;
  std::shared_ptr<Cancellation> running_ ABSL_GUARDED_BY(mutex_);  // if one is
  std::thread thread_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gshard

#endif  // ROUTER_EDGE_ROUTING_EXPLAINER_H_
