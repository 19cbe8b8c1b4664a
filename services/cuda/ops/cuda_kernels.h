// The kernels of Backend::kCuda: the operators of which the programs of routers
// and the segments of expert workers are made.

#ifndef SERVICES_CUDA_OPS_CUDA_KERNELS_H_
#define SERVICES_CUDA_OPS_CUDA_KERNELS_H_

namespace gshard {

// And the operators of services/moe and services/segments. Calling again does
// nothing.
void RegisterCudaKernels();

}  // namespace gshard

#endif  // SERVICES_CUDA_OPS_CUDA_KERNELS_H_
