// Launches of attention; conventions as in launch.h.

#ifndef SERVICES_CUDA_KERNELS_LAUNCH_ATTENTION_H_
#define SERVICES_CUDA_KERNELS_LAUNCH_ATTENTION_H_

#include <cuda_runtime_api.h>

#include "services/cuda/kernels/attention_tiles.h"

namespace gshard::cuda {

// REQUIRES: heads are at most kMostHeadWidth wide.
cudaError_t LaunchAttention(const AttentionForward& forward,
                            cudaStream_t stream);
cudaError_t LaunchAttentionGradient(const AttentionBackward& backward,
                                    cudaStream_t stream);

}  // namespace gshard::cuda

#endif  // SERVICES_CUDA_KERNELS_LAUNCH_ATTENTION_H_
