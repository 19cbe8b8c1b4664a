// The kernels of Backend::kCuda: those operators that the programs of routers
// and the segments of expert workers consist of.

#ifndef SERVICES_CUDA_OPS_CUDA_KERNELS_H_
#define SERVICES_CUDA_OPS_CUDA_KERNELS_H_

namespace gshard {

// Registers these kernels, and also the operators of services/moe and
// services/segments. Idempotent.
void RegisterCudaKernels();

}  // namespace gshard

#endif  // SERVICES_CUDA_OPS_CUDA_KERNELS_H_
