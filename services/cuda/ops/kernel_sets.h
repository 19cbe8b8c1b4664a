// The kernels of Backend::kCuda, in sets by kind of operator.

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
// Kernels of services/moe, and of the calls of segments. REQUIRES: these
// operators are registered.
KernelSet MoeKernels();

}  // namespace gshard

#endif  // SERVICES_CUDA_OPS_KERNEL_SETS_H_
