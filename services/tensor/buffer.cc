#include "services/tensor/buffer.h"

#include <cstdlib>
#include <mutex>
#include <new>
#include <unordered_map>
#include <vector>

namespace gshard {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kMaxCachedBytes = size_t{1} << 30;

// Rounds up so that nearly equal sizes share blocks: to 1/8 of the power of
// two below, which wastes at most 12.5%.
size_t BlockSize(size_t bytes) {
  if (bytes <= 512) return (bytes + kAlignment - 1) / kAlignment * kAlignment +
                           (bytes == 0 ? kAlignment : 0);
  size_t power = 512;
  while (power * 2 <= bytes) power *= 2;
  const size_t grain = power / 8;
  return (bytes + grain - 1) / grain * grain;
}

class BlockCache {
 public:
  std::byte* Take(size_t size) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      usage_.live_bytes += size;
      auto found = free_.find(size);
      if (found != free_.end() && !found->second.empty()) {
        std::byte* block = found->second.back();
        found->second.pop_back();
        usage_.cached_bytes -= size;
        return block;
      }
    }
    void* block = std::aligned_alloc(kAlignment, size);
    if (block == nullptr) throw std::bad_alloc();
    return static_cast<std::byte*>(block);
  }

  void Return(std::byte* block, size_t size) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      usage_.live_bytes -= size;
      if (usage_.cached_bytes + size <= kMaxCachedBytes) {
        free_[size].push_back(block);
        usage_.cached_bytes += size;
        return;
      }
    }
    std::free(block);
  }

  BufferUsage usage() {
    std::lock_guard<std::mutex> lock(mutex_);
    return usage_;
  }

  void Trim() {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& [size, blocks] : free_) {
      for (std::byte* block : blocks) std::free(block);
    }
    free_.clear();
    usage_.cached_bytes = 0;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<size_t, std::vector<std::byte*>> free_;
  BufferUsage usage_;
};

// Never destroyed: tensors of other static objects may outlive any order.
BlockCache& Cache() {
  static BlockCache* const cache = new BlockCache;
  return *cache;
}

}  // namespace

std::shared_ptr<std::byte> AllocateBuffer(size_t bytes) {
  const size_t size = BlockSize(bytes);
  return std::shared_ptr<std::byte>(
      Cache().Take(size),
      [size](std::byte* block) { Cache().Return(block, size); });
}

BufferUsage GetBufferUsage() { return Cache().usage(); }
void TrimBufferCache() { Cache().Trim(); }

}  // namespace gshard
