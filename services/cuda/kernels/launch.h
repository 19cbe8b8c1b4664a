// Launches of kernels: queued in a stream, nothing is waited for or allocated.
// They return CUDA's error of the launch, InvalidValue for more blocks than a
// grid has.

#ifndef SERVICES_CUDA_KERNELS_LAUNCH_H_
#define SERVICES_CUDA_KERNELS_LAUNCH_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "services/cuda/kernels/elementwise.h"
#include "services/cuda/kernels/ragged_product.h"

namespace gshard::cuda {

// Whether the current device has the kernels: the error of finding one there.
cudaError_t CheckKernels();

// Tiles of LargeTile::kRows or less.
cudaError_t LaunchRaggedProduct(const RaggedProduct<BFloat16>& product,
                                cudaStream_t stream);
// Tiles of SmallTile::kRows or less.
cudaError_t LaunchSmallRaggedProduct(const RaggedProduct<BFloat16>& product,
                                     cudaStream_t stream);
// Tiles of FloatTile::kRows or less.
cudaError_t LaunchRaggedProduct(const RaggedProduct<float>& product,
                                cudaStream_t stream);

cudaError_t LaunchRaggedWeightsGradient(
    const RaggedWeightsGradient<BFloat16>& gradient, cudaStream_t stream);
cudaError_t LaunchRaggedWeightsGradient(
    const RaggedWeightsGradient<float>& gradient, cudaStream_t stream);

cudaError_t LaunchRaggedBiasAdd(const RaggedBiasAdd& add, cudaStream_t stream);
cudaError_t LaunchRaggedBiasGradient(const RaggedBiasGradient& gradient,
                                     cudaStream_t stream);

// One of CastToBf16, CastToFloat, Relu, ReluBf16, ReluGradient, DropoutRows,
// for elements [0, size).
template <typename Function>
cudaError_t LaunchElements(const Function& function, int64_t size,
                           cudaStream_t stream);

}  // namespace gshard::cuda

#endif  // SERVICES_CUDA_KERNELS_LAUNCH_H_
