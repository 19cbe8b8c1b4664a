#include "services/cuda/ops/cuda_kernels.h"

#include "services/cuda/fuse_products.h"
#include "services/cuda/ops/kernel_sets.h"
#include "services/moe/graph_ops.h"
#include "services/segments/call_segment.h"

namespace gshard {

void RegisterCudaKernels() {
  RegisterFusedOps();
  RegisterMoeOps();
  RegisterShardingOps();
  for (KernelSet kernels :
       {ExpertKernels(), ElementwiseKernels(), ShapeKernels(), EinsumKernels(),
        LookupKernels(), NormKernels(), AttentionKernels(), LossKernels(),
        MoeKernels()}) {
    RegisterKernels(Backend::kCuda, std::move(kernels));
  }
}

}  // namespace gshard
