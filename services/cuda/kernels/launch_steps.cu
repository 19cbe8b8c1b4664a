#include "services/cuda/kernels/launch_kernel.h"
#include "services/cuda/kernels/launch_steps.h"

namespace gshard::cuda {
namespace {

template <typename Function>
__global__ void RowSumsKernel(RowSums<Function> sums) {
  RowSumsBlock(sums);
}

__global__ void ApplyUpdateKernel(ApplyUpdate apply) {
  ApplyUpdateBlock(apply);
}

}  // namespace

template <typename Function>
cudaError_t LaunchRowSums(const RowSums<Function>& sums, cudaStream_t stream) {
  return Launch(RowSumsKernel<Function>, BlocksOf(sums), kElementThreads,
                kSumSharedBytes, stream, sums);
}

cudaError_t LaunchApplyUpdate(const ApplyUpdate& apply, cudaStream_t stream) {
  return Launch(ApplyUpdateKernel, BlocksOf(apply), kElementThreads, 0, stream,
                apply);
}

template cudaError_t LaunchRowSums(const RowSums<Square>&, cudaStream_t);
template cudaError_t LaunchRowSums(const RowSums<AdafactorUpdate>&,
                                   cudaStream_t);
template cudaError_t LaunchElements(const AddTo&, int64_t, cudaStream_t);
template cudaError_t LaunchElements(const AdamElements&, int64_t, cudaStream_t);
template cudaError_t LaunchElements(const PartSums&, int64_t, cudaStream_t);
template cudaError_t LaunchElements(const RowMoments&, int64_t, cudaStream_t);
template cudaError_t LaunchElements(const RowMeans&, int64_t, cudaStream_t);
template cudaError_t LaunchElements(const RowFactors&, int64_t, cudaStream_t);
template cudaError_t LaunchElements(const ColumnMoments&, int64_t,
                                    cudaStream_t);
template cudaError_t LaunchElements(const SecondMoments&, int64_t,
                                    cudaStream_t);
template cudaError_t LaunchElements(const Rates&, int64_t, cudaStream_t);

}  // namespace gshard::cuda
