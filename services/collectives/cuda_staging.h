// CudaStaging: memory on a GPU through which an exchange passes, and the CUDA
// calls around it as statuses. For .cc files of this room only: it includes
// CUDA's headers.

#ifndef SERVICES_COLLECTIVES_CUDA_STAGING_H_
#define SERVICES_COLLECTIVES_CUDA_STAGING_H_

#include <cuda_runtime_api.h>

#include <cstddef>

#include "absl/status/status.h"

namespace gshard {

// OK, or ResourceExhausted if the GPU is out of memory, else Internal, with
// `call` and CUDA's words.
absl::Status CudaStatus(cudaError_t error, const char* call);

// Errors: FailedPrecondition if this machine has no GPU with this number.
absl::Status CheckGpu(int gpu);

// A block of the current GPU's memory that grows and never shrinks.
class CudaStaging {
 public:
  CudaStaging() = default;
  ~CudaStaging();
  CudaStaging(const CudaStaging&) = delete;
  CudaStaging& operator=(const CudaStaging&) = delete;

  // Makes room for `bytes`; what was there is lost.
  absl::Status Reserve(size_t bytes);

  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  size_t capacity_ = 0;
};

}  // namespace gshard

#endif  // SERVICES_COLLECTIVES_CUDA_STAGING_H_
