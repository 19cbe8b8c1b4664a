// Helpers that start kernels; for .cu files.

#ifndef SERVICES_CUDA_KERNELS_LAUNCH_KERNEL_H_
#define SERVICES_CUDA_KERNELS_LAUNCH_KERNEL_H_

#include <algorithm>
#include <cstdint>
#include <limits>

#include "services/cuda/kernels/launch.h"

namespace gshard::cuda {

// Starts `kernel` with `blocks` blocks; for 0 blocks it does nothing.
template <typename Kernel, typename... Arguments>
cudaError_t Launch(Kernel* kernel, int64_t blocks, int threads,
                   int shared_bytes, cudaStream_t stream,
                   const Arguments&... arguments) {
  constexpr int64_t kMostBlocks = std::numeric_limits<int32_t>::max();
  if (blocks == 0) return cudaSuccess;
  if (blocks > kMostBlocks) return cudaErrorInvalidValue;
  // CUDA requires this opt-in for more than 48 KiB of shared memory.
  if (shared_bytes > 48 << 10) {
    const cudaError_t error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
    if (error != cudaSuccess) return error;
  }
  kernel<<<static_cast<unsigned>(blocks), threads, shared_bytes, stream>>>(
      arguments...);
  return cudaGetLastError();
}

// Enough blocks for any GPU; with more elements, each thread processes several.
inline constexpr int64_t kMostElementBlocks = 1 << 14;

template <typename Function>
__global__ void ElementsKernel(Function function, int64_t size) {
  ElementsBlock(function, size);
}

template <typename Function>
cudaError_t LaunchElements(const Function& function, int64_t size,
                           cudaStream_t stream) {
  return Launch(
      ElementsKernel<Function>,
      std::min(kMostElementBlocks, BlocksAlong(size, kElementThreads)),
      kElementThreads, 0, stream, function, size);
}

}  // namespace gshard::cuda

#endif  // SERVICES_CUDA_KERNELS_LAUNCH_KERNEL_H_
