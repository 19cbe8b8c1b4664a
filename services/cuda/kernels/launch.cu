#include <algorithm>
#include <limits>

#include "services/cuda/kernels/launch.h"

namespace gshard::cuda {
namespace {

constexpr int64_t kMostBlocks = std::numeric_limits<int32_t>::max();

// Starts `kernel` with as many blocks; none is none.
template <typename Kernel, typename... Arguments>
cudaError_t Launch(Kernel* kernel, int64_t blocks, int threads,
                   int shared_bytes, cudaStream_t stream,
                   const Arguments&... arguments) {
  if (blocks == 0) return cudaSuccess;
  if (blocks > kMostBlocks) return cudaErrorInvalidValue;
  // More than 48 KiB has to be asked for.
  const cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (error != cudaSuccess) return error;
  kernel<<<static_cast<unsigned>(blocks), threads, shared_bytes, stream>>>(
      arguments...);
  return cudaGetLastError();
}

template <typename Shape, LinesAlong kB>
__global__ void __launch_bounds__(Shape::kThreads)
    RaggedProductKernel(RaggedProduct<BFloat16> product) {
  RaggedProductBlock<Shape, kB>(product);
}

__global__ void __launch_bounds__(FloatTile::kThreads)
    FloatRaggedProductKernel(RaggedProduct<float> product) {
  RaggedProductBlock(product);
}

template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads)
    RaggedWeightsGradientKernel(RaggedWeightsGradient<BFloat16> gradient) {
  RaggedWeightsGradientBlock<Shape>(gradient);
}

__global__ void __launch_bounds__(FloatTile::kThreads)
    FloatRaggedWeightsGradientKernel(RaggedWeightsGradient<float> gradient) {
  RaggedWeightsGradientBlock(gradient);
}

__global__ void RaggedBiasAddKernel(RaggedBiasAdd add) {
  RaggedBiasAddBlock(add);
}

__global__ void RaggedBiasGradientKernel(RaggedBiasGradient gradient) {
  RaggedBiasGradientBlock(gradient);
}

template <typename Function>
__global__ void ElementsKernel(Function function, int64_t size) {
  ElementsBlock(function, size);
}

template <typename Shape>
cudaError_t LaunchProduct(const RaggedProduct<BFloat16>& p,
                          cudaStream_t stream) {
  const int64_t blocks = BlocksOf<Shape>(p);
  if (p.transposed) {
    using Product = TileProduct<Shape, LinesAlong::kK, LinesAlong::kK>;
    return Launch(RaggedProductKernel<Shape, LinesAlong::kK>, blocks,
                  Shape::kThreads, Product::kSharedBytes, stream, p);
  }
  using Product = TileProduct<Shape, LinesAlong::kK, LinesAlong::kAcross>;
  return Launch(RaggedProductKernel<Shape, LinesAlong::kAcross>, blocks,
                Shape::kThreads, Product::kSharedBytes, stream, p);
}

}  // namespace

cudaError_t CheckKernels() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(
      &attributes, RaggedProductKernel<LargeTile, LinesAlong::kAcross>);
}

cudaError_t LaunchRaggedProduct(const RaggedProduct<BFloat16>& product,
                                cudaStream_t stream) {
  return LaunchProduct<LargeTile>(product, stream);
}

cudaError_t LaunchSmallRaggedProduct(const RaggedProduct<BFloat16>& product,
                                     cudaStream_t stream) {
  return LaunchProduct<SmallTile>(product, stream);
}

cudaError_t LaunchRaggedProduct(const RaggedProduct<float>& p,
                                cudaStream_t stream) {
  return Launch(FloatRaggedProductKernel, BlocksOf<FloatTile>(p),
                FloatTile::kThreads, FloatTile::kSharedBytes, stream, p);
}

cudaError_t LaunchRaggedWeightsGradient(
    const RaggedWeightsGradient<BFloat16>& g, cudaStream_t stream) {
  using Product =
      TileProduct<LargeTile, LinesAlong::kAcross, LinesAlong::kAcross>;
  return Launch(RaggedWeightsGradientKernel<LargeTile>, BlocksOf<LargeTile>(g),
                LargeTile::kThreads, Product::kSharedBytes, stream, g);
}

cudaError_t LaunchRaggedWeightsGradient(const RaggedWeightsGradient<float>& g,
                                        cudaStream_t stream) {
  return Launch(FloatRaggedWeightsGradientKernel, BlocksOf<FloatTile>(g),
                FloatTile::kThreads, FloatTile::kSharedBytes, stream, g);
}

cudaError_t LaunchRaggedBiasAdd(const RaggedBiasAdd& add, cudaStream_t stream) {
  return Launch(RaggedBiasAddKernel, add.num_tiles, kElementThreads, 0, stream,
                add);
}

cudaError_t LaunchRaggedBiasGradient(const RaggedBiasGradient& g,
                                     cudaStream_t stream) {
  return Launch(RaggedBiasGradientKernel, BlocksOf(g), kElementThreads, 0,
                stream, g);
}

template <typename Function>
cudaError_t LaunchElements(const Function& function, int64_t size,
                           cudaStream_t stream) {
  // Enough for any GPU; each thread then takes more than one.
  constexpr int64_t kBlocks = 1 << 14;
  return Launch(ElementsKernel<Function>,
                std::min(kBlocks, BlocksAlong(size, kElementThreads)),
                kElementThreads, 0, stream, function, size);
}

template cudaError_t LaunchElements(const CastToBf16&, int64_t, cudaStream_t);
template cudaError_t LaunchElements(const CastToFloat&, int64_t, cudaStream_t);
template cudaError_t LaunchElements(const Relu&, int64_t, cudaStream_t);
template cudaError_t LaunchElements(const ReluBf16&, int64_t, cudaStream_t);
template cudaError_t LaunchElements(const ReluGradient&, int64_t, cudaStream_t);
template cudaError_t LaunchElements(const DropoutRows&, int64_t, cudaStream_t);

}  // namespace gshard::cuda
