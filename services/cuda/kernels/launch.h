// Kernel launches: they queue a kernel in a stream and neither wait nor
// allocate. They return the CUDA error of the launch, or cudaErrorInvalidValue
// if a grid cannot have that many blocks.

#ifndef SERVICES_CUDA_KERNELS_LAUNCH_H_
#define SERVICES_CUDA_KERNELS_LAUNCH_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "services/cuda/kernels/elementwise.h"
#include "services/cuda/kernels/ragged_product.h"

namespace gshard::cuda {

// Checks that the current device can run the kernels: the error of looking up
// one of them, if any.
cudaError_t CheckKernels();

// For tiles of at most LargeTile::kRows rows.
cudaError_t LaunchRaggedProduct(const RaggedProduct<BFloat16>& product,
                                cudaStream_t stream);
cudaError_t LaunchRaggedProduct(const RaggedProduct<int8_t>& product,
                                cudaStream_t stream);
// For tiles of at most SmallTile::kRows rows.
cudaError_t LaunchSmallRaggedProduct(const RaggedProduct<BFloat16>& product,
                                     cudaStream_t stream);
cudaError_t LaunchSmallRaggedProduct(const RaggedProduct<int8_t>& product,
                                     cudaStream_t stream);
// For tiles of at most FloatTile::kRows rows.
cudaError_t LaunchRaggedProduct(const RaggedProduct<float>& product,
                                cudaStream_t stream);

cudaError_t LaunchRaggedWeightsGradient(
    const RaggedWeightsGradient<BFloat16>& gradient, cudaStream_t stream);
cudaError_t LaunchRaggedWeightsGradient(
    const RaggedWeightsGradient<float>& gradient, cudaStream_t stream);

cudaError_t LaunchRaggedBiasAdd(const RaggedBiasAdd& add, cudaStream_t stream);
cudaError_t LaunchRaggedBiasGradient(const RaggedBiasGradient& gradient,
                                     cudaStream_t stream);

// Calls `function` for elements [0, size): a CastToBf16, CastToFloat, Relu,
// ReluBf16, ReluGradient or DropoutRows.
template <typename Function>
cudaError_t LaunchElements(const Function& function, int64_t size,
                           cudaStream_t stream);

}  // namespace gshard::cuda

#endif  // SERVICES_CUDA_KERNELS_LAUNCH_H_
