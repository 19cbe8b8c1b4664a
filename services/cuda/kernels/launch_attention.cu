#include "services/cuda/kernels/launch_attention.h"
#include "services/cuda/kernels/launch_kernel.h"

namespace gshard::cuda {
namespace {

// Two blocks on a multiprocessor, so that one computes while the other waits;
// wider heads need the registers.
template <int kChunks>
inline constexpr int kLeastBlocks = kChunks == 1 ? 2 : 1;

template <int kChunks>
__global__ void __launch_bounds__(AttentionTile<kChunks>::kThreads,
                                  kLeastBlocks<kChunks>)
    ForwardKernel(AttentionForward forward) {
  AttentionForwardBlock<kChunks>(forward);
}

template <int kChunks>
__global__ void __launch_bounds__(AttentionTile<kChunks>::kThreads,
                                  kLeastBlocks<kChunks>)
    QueriesGradientKernel(AttentionBackward backward) {
  AttentionQueriesGradientBlock<kChunks>(backward);
}

template <int kChunks>
__global__ void __launch_bounds__(AttentionTile<kChunks>::kThreads,
                                  kLeastBlocks<kChunks>)
    KeysGradientKernel(AttentionBackward backward) {
  AttentionKeysGradientBlock<kChunks>(backward);
}

template <int kChunks, typename Arguments>
cudaError_t LaunchTiles(void (*kernel)(Arguments), int64_t rows,
                        const Arguments& arguments, cudaStream_t stream) {
  using Tile = AttentionTile<kChunks>;
  return Launch(kernel, AttentionBlocks(arguments.operands, rows),
                Tile::kThreads, Tile::kSharedBytes, stream, arguments);
}

}  // namespace

cudaError_t LaunchAttention(const AttentionForward& forward,
                            cudaStream_t stream) {
  return ByHeadWidth(forward.operands.width, [&]<int kChunks>() {
    return LaunchTiles<kChunks>(ForwardKernel<kChunks>,
                                forward.operands.mask.queries, forward, stream);
  });
}

cudaError_t LaunchAttentionGradient(const AttentionBackward& backward,
                                    cudaStream_t stream) {
  const AttentionMask& mask = backward.operands.mask;
  return ByHeadWidth(backward.operands.width, [&]<int kChunks>() {
    const cudaError_t error = LaunchTiles<kChunks>(
        QueriesGradientKernel<kChunks>, mask.queries, backward, stream);
    if (error != cudaSuccess) return error;
    return LaunchTiles<kChunks>(KeysGradientKernel<kChunks>, mask.keys,
                                backward, stream);
  });
}

}  // namespace gshard::cuda
