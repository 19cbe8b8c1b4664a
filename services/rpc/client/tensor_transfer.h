// Blocking calls that transfer tensors: a router's dense gradients and
// parameters, and a worker's gradient sums to its buddy. The rest of a training
// step does not block.

#ifndef SERVICES_RPC_CLIENT_TENSOR_TRANSFER_H_
#define SERVICES_RPC_CLIENT_TENSOR_TRANSFER_H_

#include <grpcpp/channel.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <stop_token>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/gshard/v1/coordinator.pb.h"
#include "proto/gshard/v1/expert.pb.h"
#include "services/rpc/wire/tensor_pieces.h"

namespace gshard {

// In the following, a call that is in progress or begins later ends with
// Cancelled if its `stop` is requested.

// CoordinatorService.PushGradients. `header` names the microbatch; the tensors
// must not be written until the call returns. Errors: those of the method;
// Cancelled.
absl::Status PushGradients(const std::shared_ptr<grpc::Channel>& channel,
                           const v1::TensorFrameHeader& header,
                           const NamedTensors& gradients,
                           std::chrono::milliseconds timeout,
                           std::stop_token stop = {});

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
                                std::stop_token stop = {});

// CoordinatorService.PullParameters. Errors: those of the method; Cancelled;
// InvalidArgument if the response does not match `expected`.
absl::StatusOr<NamedTensors> PullParameters(
    const std::shared_ptr<grpc::Channel>& channel,
    const v1::PullParametersRequest& request,
    const std::map<std::string, ExpectedTensor>& expected,
    std::chrono::milliseconds timeout, std::stop_token stop = {});

}  // namespace gshard

#endif  // SERVICES_RPC_CLIENT_TENSOR_TRANSFER_H_
