#include "services/collectives/cuda_staging.h"

#include <algorithm>

#include "services/base/status_macros.h"
#include "services/collectives/cuda_status.h"

namespace gshard {

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
