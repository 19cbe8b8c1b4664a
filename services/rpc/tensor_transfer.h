// The router's calls for dense gradients and parameters. They block; all the
// rest of a training step does not.

#ifndef SERVICES_RPC_TENSOR_TRANSFER_H_
#define SERVICES_RPC_TENSOR_TRANSFER_H_

#include <grpcpp/channel.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/gshard/v1/coordinator.pb.h"
#include "services/rpc/tensor_pieces.h"

namespace gshard {

// CoordinatorService.PushGradients. `header` says of which microbatch; the
// tensors are not written until the call returns. Errors: those of the method.
absl::Status PushGradients(const std::shared_ptr<grpc::Channel>& channel,
                           const v1::TensorFrameHeader& header,
                           const NamedTensors& gradients,
                           std::chrono::milliseconds timeout);

// CoordinatorService.PullParameters. Errors: those of the method;
// InvalidArgument if what comes is not what was expected.
absl::StatusOr<NamedTensors> PullParameters(
    const std::shared_ptr<grpc::Channel>& channel,
    const v1::PullParametersRequest& request,
    const std::map<std::string, ExpectedTensor>& expected,
    std::chrono::milliseconds timeout);

}  // namespace gshard

#endif  // SERVICES_RPC_TENSOR_TRANSFER_H_
