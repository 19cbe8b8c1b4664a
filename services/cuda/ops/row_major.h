// Strides of tensors, and reductions over them.

#ifndef SERVICES_CUDA_OPS_ROW_MAJOR_H_
#define SERVICES_CUDA_OPS_ROW_MAJOR_H_

#include "services/cuda/kernels/strides.h"
#include "services/cuda/ops/kernel_call.h"

namespace gshard {

// REQUIRES: at most cuda::kMostDims.
cuda::Strides RowMajor(const Dims& dims);

// As many elements as `dims` says where those of `whole` are.
cuda::Strides PartOf(cuda::Strides whole, const Dims& dims);

// Reduces x over `reduced`, for each element of `kept`, to `out`, row by row.
absl::Status Reduce(KernelCall& call, cuda::ReduceStrided::Op op,
                    const float* x, cuda::Strides kept, cuda::Strides reduced,
                    float* out);

}  // namespace gshard

#endif  // SERVICES_CUDA_OPS_ROW_MAJOR_H_
