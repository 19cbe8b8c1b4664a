// Calls that bring tensors: the router's for dense gradients and parameters,
// the worker's to its buddy. They block; all the rest of a training step does
// not.

#ifndef SERVICES_RPC_CLIENT_TENSOR_TRANSFER_H_
#define SERVICES_RPC_CLIENT_TENSOR_TRANSFER_H_

#include <grpcpp/channel.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/gshard/v1/coordinator.pb.h"
#include "proto/gshard/v1/expert.pb.h"
#include "services/base/mutex.h"
#include "services/rpc/wire/tensor_pieces.h"

namespace gshard {

// Ends calls from another thread. Thread-safe.
class CallStop {
 public:
  // What is called now or later ends with CANCELLED.
  void Stop();

  // Of calls: `cancel` is what Stop() does, until it is replaced.
  void OnStop(std::function<void()> cancel);

 private:
  Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::function<void()> cancel_ ABSL_GUARDED_BY(mutex_);  // may be null
};

// CoordinatorService.PushGradients. `header` says of which microbatch; the
// tensors are not written until the call returns. Errors: those of the method.
absl::Status PushGradients(const std::shared_ptr<grpc::Channel>& channel,
                           const v1::TensorFrameHeader& header,
                           const NamedTensors& gradients,
                           std::chrono::milliseconds timeout);

// ExpertWorkerService.ReplicateGradients. `header` says of which step; `stop`
// outlives the call. Errors: those of the method; Cancelled.
absl::Status ReplicateGradients(const std::shared_ptr<grpc::Channel>& channel,
                                const v1::TensorFrameHeader& header,
                                const NamedTensors& sums,
                                std::chrono::milliseconds timeout,
                                CallStop* stop);

// CoordinatorService.PullParameters. Errors: those of the method;
// InvalidArgument if what comes is not what was expected.
absl::StatusOr<NamedTensors> PullParameters(
    const std::shared_ptr<grpc::Channel>& channel,
    const v1::PullParametersRequest& request,
    const std::map<std::string, ExpectedTensor>& expected,
    std::chrono::milliseconds timeout);

}  // namespace gshard

#endif  // SERVICES_RPC_CLIENT_TENSOR_TRANSFER_H_
