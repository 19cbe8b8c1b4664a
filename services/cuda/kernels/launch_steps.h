// Launches of the kernels that training runs on parameters and gradients;
// conventions as in launch.h.

#ifndef SERVICES_CUDA_KERNELS_LAUNCH_STEPS_H_
#define SERVICES_CUDA_KERNELS_LAUNCH_STEPS_H_

#include "services/cuda/kernels/launch.h"
#include "services/cuda/kernels/optimizer_steps.h"
#include "services/cuda/kernels/row_sums.h"

namespace gshard::cuda {

// LaunchElements also accepts AddTo, AdamElements, PartSums, RowMoments,
// RowMeans, RowFactors, ColumnMoments, SecondMoments and Rates.

// `Function` is Square or AdafactorUpdate.
template <typename Function>
cudaError_t LaunchRowSums(const RowSums<Function>& sums, cudaStream_t stream);

cudaError_t LaunchApplyUpdate(const ApplyUpdate& apply, cudaStream_t stream);

}  // namespace gshard::cuda

#endif  // SERVICES_CUDA_KERNELS_LAUNCH_STEPS_H_
