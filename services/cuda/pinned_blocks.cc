#include "services/cuda/pinned_blocks.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "services/base/status_macros.h"
#include "services/collectives/cuda_status.h"

namespace gshard {
namespace {

constexpr size_t kLeastBytes = 4096;

}  // namespace

PinnedBlocks::Blocks::~Blocks() {
  MutexLock lock(mutex);
  for (const auto& [size, same] : idle) {
    for (std::byte* block : same) Free(block);
  }
}

void PinnedBlocks::Blocks::Free(void* block) const {
  // The calling thread may have another current device. If it has none, the
  // call would create a context on GPU 0, which may not be the one in use.
  cudaSetDevice(gpu);
  cudaFreeHost(block);
  cudaGetLastError();
}

absl::StatusOr<Tensor> PinnedBlocks::New(ElementType type, Dims dims) {
  const size_t bytes = NumElements(dims) * ElementSize(type);
  const size_t size = std::bit_ceil(std::max(bytes, kLeastBytes));
  std::byte* block = nullptr;
  {
    MutexLock lock(blocks_->mutex);
    std::vector<std::byte*>& same = blocks_->idle[size];
    if (!same.empty()) {
      block = same.back();
      same.pop_back();
      blocks_->idle_bytes -= size;
    }
  }
  if (block == nullptr) {
    void* data = nullptr;
    RETURN_IF_ERROR(CudaStatus(
        cudaHostAlloc(&data, size, cudaHostAllocPortable), "cudaHostAlloc"));
    block = static_cast<std::byte*>(data);
  }
  std::shared_ptr<void> keeper(block, [blocks = blocks_, size](void* data) {
    MutexLock lock(blocks->mutex);
    if (blocks->idle_bytes + size <= kMostIdleBytes) {
      blocks->idle[size].push_back(static_cast<std::byte*>(data));
      blocks->idle_bytes += size;
      return;
    }
    lock.Unlock();
    blocks->Free(data);
  });
  return Tensor::Wrap(type, std::move(dims), block, std::move(keeper));
}

}  // namespace gshard
