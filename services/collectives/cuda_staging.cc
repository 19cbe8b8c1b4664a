#include "services/collectives/cuda_staging.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"

namespace gshard {

absl::Status CudaStatus(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return absl::OkStatus();
  const std::string message =
      absl::StrCat(call, ": ", cudaGetErrorString(error));
  if (error == cudaErrorMemoryAllocation) {
    return absl::ResourceExhaustedError(message);
  }
  return absl::InternalError(message);
}

absl::Status CheckGpu(int gpu) {
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

CudaStaging::~CudaStaging() { cudaFree(data_); }

absl::Status CudaStaging::Reserve(size_t bytes) {
  if (bytes <= capacity_) return absl::OkStatus();
  const size_t capacity = std::max(bytes, 2 * capacity_);
  RETURN_IF_ERROR(CudaStatus(cudaFree(data_), "cudaFree"));
  data_ = nullptr;
  capacity_ = 0;
  void* data = nullptr;
  RETURN_IF_ERROR(CudaStatus(cudaMalloc(&data, capacity), "cudaMalloc"));
  data_ = static_cast<std::byte*>(data);
  capacity_ = capacity;
  return absl::OkStatus();
}

}  // namespace gshard
