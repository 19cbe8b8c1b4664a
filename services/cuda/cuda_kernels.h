// The kernels of Backend::kCuda: the operators of which the segments of expert
// workers are made.

#ifndef SERVICES_CUDA_CUDA_KERNELS_H_
#define SERVICES_CUDA_CUDA_KERNELS_H_

namespace gshard {

// Calling again does nothing.
void RegisterCudaKernels();

}  // namespace gshard

#endif  // SERVICES_CUDA_CUDA_KERNELS_H_
