// CudaStaging: GPU memory that stages an exchange.

#ifndef SERVICES_COLLECTIVES_CUDA_STAGING_H_
#define SERVICES_COLLECTIVES_CUDA_STAGING_H_

#include <cstddef>

#include "absl/status/status.h"

namespace gshard {

// A block of the current GPU's memory that grows and never shrinks.
class CudaStaging {
 public:
  CudaStaging() = default;
  ~CudaStaging();
  CudaStaging(const CudaStaging&) = delete;
  CudaStaging& operator=(const CudaStaging&) = delete;

  // Makes room for `bytes`; the contents are lost.
  absl::Status Reserve(size_t bytes);

  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  size_t capacity_ = 0;
};

}  // namespace gshard

#endif  // SERVICES_COLLECTIVES_CUDA_STAGING_H_
