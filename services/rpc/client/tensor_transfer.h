// Blocking calls that transfer tensors: a router's dense gradients and
// parameters, and a worker's gradient sums to its buddy. The rest of a training
// step does not block.

#ifndef SERVICES_RPC_CLIENT_TENSOR_TRANSFER_H_
#define SERVICES_RPC_CLIENT_TENSOR_TRANSFER_H_

#include <grpcpp/channel.h>

#include <chrono>
#include <cstdint>
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

// Cancels calls from another thread. Thread-safe.
class CallStop {
 public:
  // Calls that are in progress or begin later end with CANCELLED.
  void Stop();

  // Used by calls: Stop() runs `cancel` until Remove() of the result. Runs it
  // at once after Stop().
  uint64_t OnStop(std::function<void()> cancel);
  void Remove(uint64_t id);

 private:
  Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, std::function<void()>> calls_ ABSL_GUARDED_BY(mutex_);
};

// In the following, `stop` must outlive the call, and may be null.

// CoordinatorService.PushGradients. `header` names the microbatch; the tensors
// must not be written until the call returns. Errors: those of the method;
// Cancelled.
absl::Status PushGradients(const std::shared_ptr<grpc::Channel>& channel,
                           const v1::TensorFrameHeader& header,
                           const NamedTensors& gradients,
                           std::chrono::milliseconds timeout,
                           CallStop* stop = nullptr);

// The slowest network that a push to a buddy may have.
inline constexpr int64_t kMinPushBytesPerSecond = 10'000'000;

// How long a push of `bytes` to a buddy may take: a minute, for one that cannot
// be reached, and the time of the bytes at kMinPushBytesPerSecond.
std::chrono::milliseconds PushTimeout(int64_t bytes);

// ExpertWorkerService.ReplicateGradients. `header` names the step. Errors:
// those of the method; Cancelled.
absl::Status ReplicateGradients(const std::shared_ptr<grpc::Channel>& channel,
                                const v1::TensorFrameHeader& header,
                                const NamedTensors& sums,
                                std::chrono::milliseconds timeout,
                                CallStop* stop);

// CoordinatorService.PullParameters. Errors: those of the method; Cancelled;
// InvalidArgument if the response does not match `expected`.
absl::StatusOr<NamedTensors> PullParameters(
    const std::shared_ptr<grpc::Channel>& channel,
    const v1::PullParametersRequest& request,
    const std::map<std::string, ExpectedTensor>& expected,
    std::chrono::milliseconds timeout, CallStop* stop = nullptr);

}  // namespace gshard

#endif  // SERVICES_RPC_CLIENT_TENSOR_TRANSFER_H_
