#include "services/cuda/kernels/launch.h"
#include "services/cuda/kernels/launch_kernel.h"

namespace gshard::cuda {
namespace {

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
    Int8RaggedProductKernel(RaggedProduct<int8_t> product) {
  RaggedProductBlock<Shape>(product);
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

template <typename Shape>
cudaError_t LaunchProduct(const RaggedProduct<int8_t>& p, cudaStream_t stream) {
  return Launch(Int8RaggedProductKernel<Shape>, BlocksOf<Shape>(p),
                Shape::kThreads, Int8Product<Shape>::kSharedBytes, stream, p);
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

cudaError_t LaunchRaggedProduct(const RaggedProduct<int8_t>& product,
                                cudaStream_t stream) {
  return LaunchProduct<LargeInt8Tile>(product, stream);
}

cudaError_t LaunchSmallRaggedProduct(const RaggedProduct<int8_t>& product,
                                     cudaStream_t stream) {
  return LaunchProduct<SmallInt8Tile>(product, stream);
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

template cudaError_t LaunchElements(const CastToBf16&, int64_t, cudaStream_t);
template cudaError_t LaunchElements(const CastToFloat&, int64_t, cudaStream_t);
template cudaError_t LaunchElements(const Relu&, int64_t, cudaStream_t);
template cudaError_t LaunchElements(const ReluBf16&, int64_t, cudaStream_t);
template cudaError_t LaunchElements(const ReluGradient&, int64_t, cudaStream_t);
template cudaError_t LaunchElements(const DropoutRows&, int64_t, cudaStream_t);

}  // namespace gshard::cuda
