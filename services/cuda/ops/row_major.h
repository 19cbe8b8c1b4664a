// Strides of tensors, and reductions over them.

#ifndef SERVICES_CUDA_OPS_ROW_MAJOR_H_
#define SERVICES_CUDA_OPS_ROW_MAJOR_H_

#include "services/cuda/kernels/strides.h"
#include "services/cuda/ops/kernel_call.h"

namespace gshard {

// Row-major strides of `dims`. REQUIRES: at most cuda::kMostDims dimensions.
cuda::Strides RowMajor(const Dims& dims);

// The strides of `whole` with the sizes `dims`: addresses a part of the tensor.
cuda::Strides PartOf(cuda::Strides whole, const Dims& dims);

// Reduces x over the elements of `reduced`, for each element of `kept`. `out`
// is row-major.
absl::Status Reduce(KernelCall& call, cuda::ReduceStrided::Op op,
                    const float* x, cuda::Strides kept, cuda::Strides reduced,
                    float* out);

}  // namespace gshard

#endif  // SERVICES_CUDA_OPS_ROW_MAJOR_H_
