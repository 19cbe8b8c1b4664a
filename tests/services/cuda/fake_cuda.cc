#include "tests/services/cuda/fake_cuda.h"

#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include "services/base/check.h"
#include "services/cuda/kernels/launch_attention.h"
#include "services/cuda/kernels/launch_dense.h"
#include "services/cuda/kernels/launch_steps.h"
#include "tests/services/cuda/emulated_kernels.h"

struct CUstream_st {
  int gpu;
  std::deque<std::function<void()>> queue;
};

namespace gshard {
namespace {

std::map<const void*, size_t> device_blocks, pinned_blocks;  // bytes
std::map<const void*, int> pinned_by;                        // GPU

thread_local int current_gpu = 0;

// The error of all calls that can report a lost GPU.
cudaError_t State() {
  return TheFakeCuda().broken ? cudaErrorLaunchFailure : cudaSuccess;
}

void Free(void* block, std::map<const void*, size_t>& blocks, int64_t& total) {
  const auto found = blocks.find(block);
  CHECK(found != blocks.end());
  std::memset(block, 0xff, found->second);
  total -= static_cast<int64_t>(found->second);
  blocks.erase(found);
  std::free(block);
}

void* Allocate(size_t bytes, std::map<const void*, size_t>& blocks,
               int64_t& total) {
  const size_t size = (bytes + 255) / 256 * 256;
  void* const block = std::aligned_alloc(256, size);
  std::memset(block, 0xff, size);
  blocks[block] = size;
  total += static_cast<int64_t>(size);
  return block;
}

// Queues work in a stream and counts it as pending.
cudaError_t Add(cudaStream_t stream, std::function<void()> work) {
  CHECK(stream->gpu == current_gpu);
  if (State() != cudaSuccess) return State();
  ++TheFakeCuda().pending;
  stream->queue.push_back([work = std::move(work)] {
    if (State() == cudaSuccess) work();
    --TheFakeCuda().pending;
  });
  return cudaSuccess;
}

cudaError_t Queue(cudaStream_t stream, std::function<void()> kernel) {
  return Add(stream, [kernel = std::move(kernel)] {
    TheFakeCuda().broken = TheFakeCuda().launches_fail;
    if (State() == cudaSuccess) kernel();
  });
}

}  // namespace

FakeCuda& TheFakeCuda() {
  static FakeCuda fake;
  return fake;
}

namespace cuda {

cudaError_t CheckKernels() {
  return TheFakeCuda().too_old ? cudaErrorUnsupportedPtxVersion : cudaSuccess;
}
cudaError_t LaunchRaggedProduct(const RaggedProduct<BFloat16>& p,
                                cudaStream_t stream) {
  return Queue(stream, [p] { Emulate<LargeTile>(p); });
}
cudaError_t LaunchSmallRaggedProduct(const RaggedProduct<BFloat16>& p,
                                     cudaStream_t stream) {
  return Queue(stream, [p] { Emulate<SmallTile>(p); });
}
cudaError_t LaunchRaggedProduct(const RaggedProduct<int8_t>& p,
                                cudaStream_t stream) {
  return Queue(stream, [p] { Emulate<LargeInt8Tile>(p); });
}
cudaError_t LaunchSmallRaggedProduct(const RaggedProduct<int8_t>& p,
                                     cudaStream_t stream) {
  return Queue(stream, [p] { Emulate<SmallInt8Tile>(p); });
}
cudaError_t LaunchRaggedProduct(const RaggedProduct<float>& p,
                                cudaStream_t stream) {
  return Queue(stream, [p] { Emulate(p); });
}
cudaError_t LaunchRaggedWeightsGradient(
    const RaggedWeightsGradient<BFloat16>& g, cudaStream_t stream) {
  return Queue(stream, [g] { Emulate(g); });
}
cudaError_t LaunchRaggedWeightsGradient(const RaggedWeightsGradient<float>& g,
                                        cudaStream_t stream) {
  return Queue(stream, [g] { Emulate(g); });
}
cudaError_t LaunchRaggedBiasAdd(const RaggedBiasAdd& add, cudaStream_t stream) {
  return Queue(stream, [add] { Emulate(add); });
}
cudaError_t LaunchRaggedBiasGradient(const RaggedBiasGradient& g,
                                     cudaStream_t stream) {
  return Queue(stream, [g] { Emulate(g); });
}
template <typename Function>
cudaError_t LaunchElements(const Function& function, int64_t size,
                           cudaStream_t stream) {
  return Queue(stream, [=] { EmulateElements(function, size); });
}
template cudaError_t LaunchElements(const CastToBf16&, int64_t, cudaStream_t);
template cudaError_t LaunchElements(const CastToFloat&, int64_t, cudaStream_t);
template cudaError_t LaunchElements(const Relu&, int64_t, cudaStream_t);
template cudaError_t LaunchElements(const ReluBf16&, int64_t, cudaStream_t);
template cudaError_t LaunchElements(const ReluGradient&, int64_t, cudaStream_t);
template cudaError_t LaunchElements(const DropoutRows&, int64_t, cudaStream_t);

template <typename Function>
cudaError_t LaunchRows(const Function& function, int64_t rows,
                       cudaStream_t stream) {
  return Queue(stream, [=] { EmulateRows(function, rows); });
}
GSHARD_INSTANTIATE_DENSE

cudaError_t LaunchAttention(const AttentionForward& f, cudaStream_t stream) {
  return Queue(stream, [f] { Emulate(f); });
}
cudaError_t LaunchAttentionGradient(const AttentionBackward& g,
                                    cudaStream_t stream) {
  return Queue(stream, [g] { Emulate(g); });
}

template <typename Function>
cudaError_t LaunchRowSums(const RowSums<Function>& s, cudaStream_t stream) {
  return Queue(stream, [s] { Emulate(s); });
}
cudaError_t LaunchApplyUpdate(const ApplyUpdate& apply, cudaStream_t stream) {
  return Queue(stream, [apply] { Emulate(apply); });
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

}  // namespace cuda
}  // namespace gshard

using gshard::FakeCuda;
using gshard::TheFakeCuda;

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 2;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::strcpy(properties->name, "fake");
  properties->major = TheFakeCuda().major;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = TheFakeCuda().memory_bytes;
  *total = *free * 2;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int) {
  *pool = nullptr;
  return cudaSuccess;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) {
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 1;
  return cudaSuccess;
}
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t, const cudaMemAccessDesc*,
                                 size_t) {
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int gpu) {
  gshard::current_gpu = gpu;
  return gshard::State();
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "out of memory" : "a fake error";
}
cudaError_t cudaGetLastError() { return gshard::State(); }

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new CUstream_st{.gpu = gshard::current_gpu, .queue = {}};
  return gshard::State();
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  cudaStreamSynchronize(stream);
  delete stream;
  return gshard::State();
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  while (!stream->queue.empty()) {
    stream->queue.front()();
    stream->queue.pop_front();
  }
  return gshard::State();
}
cudaError_t cudaStreamQuery(cudaStream_t) { return gshard::State(); }

cudaError_t cudaMallocAsync(void** data, size_t bytes, cudaStream_t stream) {
  CHECK(stream->gpu == gshard::current_gpu);
  if (gshard::State() != cudaSuccess) return gshard::State();
  FakeCuda& fake = TheFakeCuda();
  if (fake.device_bytes + static_cast<int64_t>(bytes) > fake.memory_bytes) {
    return cudaErrorMemoryAllocation;
  }
  *data = gshard::Allocate(bytes, gshard::device_blocks, fake.device_bytes);
  return cudaSuccess;
}
// Frees in any state, so that remaining blocks are leaks.
cudaError_t cudaFreeAsync(void* data, cudaStream_t stream) {
  CHECK(stream->gpu == gshard::current_gpu);
  stream->queue.push_back([data] {
    gshard::Free(data, gshard::device_blocks, TheFakeCuda().device_bytes);
  });
  return gshard::State();
}
cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned) {
  TheFakeCuda().broken |= TheFakeCuda().pinning_fails;
  if (gshard::State() != cudaSuccess) return gshard::State();
  *data = gshard::Allocate(bytes, gshard::pinned_blocks,
                           TheFakeCuda().pinned_bytes);
  gshard::pinned_by[*data] = gshard::current_gpu;
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* data) {
  CHECK(gshard::pinned_by.at(data) == gshard::current_gpu);
  gshard::Free(data, gshard::pinned_blocks, TheFakeCuda().pinned_bytes);
  return gshard::State();
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes,
                            cudaMemcpyKind, cudaStream_t stream) {
  return gshard::Add(stream, [=] { std::memcpy(to, from, bytes); });
}
