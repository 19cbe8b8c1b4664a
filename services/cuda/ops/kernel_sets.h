// The kernels of Backend::kCuda by what they are of.

#ifndef SERVICES_CUDA_OPS_KERNEL_SETS_H_
#define SERVICES_CUDA_OPS_KERNEL_SETS_H_

#include <map>
#include <string>

#include "services/graph/op.h"

namespace gshard {

using KernelSet = std::map<std::string, Kernel>;

KernelSet ExpertKernels();
KernelSet ElementwiseKernels();
KernelSet ShapeKernels();
KernelSet EinsumKernels();
KernelSet LookupKernels();
KernelSet NormKernels();
KernelSet AttentionKernels();
KernelSet LossKernels();
// Of services/moe, and the calls of segments, whose operators are to be there.
KernelSet MoeKernels();

}  // namespace gshard

#endif  // SERVICES_CUDA_OPS_KERNEL_SETS_H_
