#include "services/cuda/kernels/launch_dense.h"
#include "services/cuda/kernels/launch_kernel.h"

namespace gshard::cuda {
namespace {

template <typename Function>
__global__ void __launch_bounds__(kElementThreads)
    RowsKernel(Function function, int64_t rows) {
  RowsBlock(function, rows);
}

}  // namespace

template <typename Function>
cudaError_t LaunchRows(const Function& function, int64_t rows,
                       cudaStream_t stream) {
  return Launch(RowsKernel<Function>,
                std::min(kMostElementBlocks, BlocksAlong(rows, kRowsOfBlock)),
                kElementThreads, 0, stream, function, rows);
}

GSHARD_INSTANTIATE_DENSE

}  // namespace gshard::cuda
