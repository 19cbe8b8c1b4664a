// Errors of CUDA's runtime as statuses. For CUDA builds only.

#ifndef SERVICES_COLLECTIVES_CUDA_STATUS_H_
#define SERVICES_COLLECTIVES_CUDA_STATUS_H_

#include <cuda_runtime_api.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "services/base/retry_delay.h"

namespace gshard {

// OK, or ResourceExhausted if the GPU is out of memory, else Internal, with
// `call` and CUDA's message.
inline absl::Status CudaStatus(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return absl::OkStatus();
  const std::string message =
      absl::StrCat(call, ": ", cudaGetErrorString(error));
  cudaGetLastError();  // else the next kernel reports it, too
  return error == cudaErrorMemoryAllocation ? NoMemoryError(message)
                                            : absl::InternalError(message);
}

// Errors: FailedPrecondition if this machine has no GPU of this index.
inline absl::Status CheckGpu(int gpu) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    return absl::FailedPreconditionError(absl::StrCat(
        "this machine has no usable GPU: ", cudaGetErrorString(error)));
  }
  if (gpu < 0 || gpu >= count) {
    return absl::FailedPreconditionError(absl::StrCat(
        "expected one of the ", count, " GPUs of this machine, got ", gpu));
  }
  return absl::OkStatus();
}

}  // namespace gshard

#endif  // SERVICES_COLLECTIVES_CUDA_STATUS_H_
