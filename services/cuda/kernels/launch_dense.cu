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

#define GSHARD_LAUNCH(Function) \
  template cudaError_t LaunchElements(const Function&, int64_t, cudaStream_t);
GSHARD_DENSE_ELEMENTS(GSHARD_LAUNCH)
#undef GSHARD_LAUNCH
#define GSHARD_LAUNCH(Function) \
  template cudaError_t LaunchRows(const Function&, int64_t, cudaStream_t);
GSHARD_DENSE_ROWS(GSHARD_LAUNCH)
#undef GSHARD_LAUNCH

}  // namespace gshard::cuda
