#include "services/tensor/buffer.h"

#include <malloc.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/base/mutex.h"
#include "services/base/parallel.h"
#include "services/base/retry_delay.h"

namespace gshard {
namespace {

constexpr size_t kAlignment = 64;

// The cache may exceed live memory by this much. A training step frees the
// gradients of all weights and the next one needs them again: mapping them anew
// would take longer than computing them.
constexpr size_t kMostCached = size_t{1} << 30;

// Live plus cached memory may exceed the peak of live memory by this many
// bytes: at most twice the peak, up to a limit. Otherwise each of many varying
// sizes would keep its own peak.
constexpr size_t kMostSpare = size_t{1} << 30;
constexpr size_t kAlwaysSpare = size_t{1} << 20;

// From this size on a block has its own mapping, which returns its memory to
// the system when freed, where a heap with ever new sizes would keep gaps.
// Sanitizers watch the heap.
#ifdef GSHARD_SANITIZED
constexpr size_t kMappedBytes = SIZE_MAX;
#else
constexpr size_t kMappedBytes = size_t{64} << 10;
#endif

// From this size on a block has huge pages, where available: few-row products
// read int8 weights a seventh faster, float32 a third. Adjacent blocks share
// pages.
constexpr size_t kHugeBytes = size_t{1} << 20;

std::byte* NewBlock(size_t size) {
  void* block;
  if (size < kMappedBytes) {
    block = std::aligned_alloc(kAlignment, size);
  } else {
    block = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS, /*fd=*/-1, /*offset=*/0);
    if (block == MAP_FAILED) {
      block = nullptr;
    } else if (size >= kHugeBytes) {
      madvise(block, size, MADV_HUGEPAGE);
    }
  }
  if (block == nullptr) throw std::bad_alloc();
  return static_cast<std::byte*>(block);
}

void FreeBlock(std::byte* block, size_t size) {
  if (size < kMappedBytes) {
    std::free(block);
  } else {
    munmap(block, size);
  }
}

// Rounds up so that nearly equal sizes share blocks: to 1/8 of the power of
// two below, which wastes at most 12.5%. No block has 2^63 bytes or more, so
// nothing overflows.
size_t BlockSize(size_t bytes) {
  if (bytes > SIZE_MAX / 2) throw std::bad_alloc();
  if (bytes <= 512)
    return (bytes + kAlignment - 1) / kAlignment * kAlignment +
           (bytes == 0 ? kAlignment : 0);
  size_t power = 512;
  while (power * 2 <= bytes) power *= 2;
  const size_t grain = power / 8;
  return (bytes + grain - 1) / grain * grain;
}

struct Block {
  std::byte* data;
  // All rows that are not `written` are zeros; 0 if nothing is known.
  size_t row_bytes = 0;
  std::vector<bool> written = {};
};

class BlockCache {
 public:
  // Prefers a block with known zeros for as many rows of `row_bytes`.
  Block Take(size_t size, size_t row_bytes = 0, size_t rows = 0) {
    MutexLock lock(mutex_);
    auto found = free_.find(size);
    if (found != free_.end() && !found->second.blocks.empty()) {
      std::vector<Block>& same = found->second.blocks;
      auto best =
          std::find_if(same.rbegin(), same.rend(), [&](const Block& known) {
            return known.row_bytes == row_bytes && known.written.size() == rows;
          });
      if (best == same.rend()) best = same.rbegin();
      Block block = std::exchange(*best, std::move(same.back()));
      same.pop_back();
      found->second.last_use = ++clock_;
      usage_.cached_bytes -= size;
      CountLive(size);
      return block;
    }
    lock.Unlock();
    Block block{.data = NewBlock(size)};  // may throw, before it counts as live
    if (size >= kMappedBytes) {
      block.row_bytes = row_bytes;
      block.written.resize(rows);  // the system maps zeros
    }
    lock.Lock();
    CountLive(size);
    FreeExcess();
    return block;
  }

  void Return(Block block, size_t size) {
    MutexLock lock(mutex_);
    usage_.live_bytes -= size;
    usage_.cached_bytes += size;
    Blocks& same = free_[size];
    same.blocks.push_back(std::move(block));
    same.last_use = ++clock_;
    FreeExcess();
  }

  BufferUsage usage() {
    MutexLock lock(mutex_);
    return usage_;
  }

  void Trim() {
    MutexLock lock(mutex_);
    for (auto& [size, same] : free_) {
      for (const Block& block : same.blocks) FreeBlock(block.data, size);
    }
    free_.clear();
    usage_.cached_bytes = 0;
  }

 private:
  void CountLive(size_t size) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    usage_.live_bytes += size;
    peak_bytes_ = std::max(peak_bytes_, usage_.live_bytes);
  }

  struct Blocks {  // free blocks of one size
    std::vector<Block> blocks;
    uint64_t last_use = 0;
  };

  void FreeExcess() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const size_t most_held =
        peak_bytes_ + std::min(peak_bytes_ + kAlwaysSpare, kMostSpare);
    while (usage_.cached_bytes > usage_.live_bytes + kMostCached ||
           usage_.live_bytes + usage_.cached_bytes > most_held) {
      FreeStalest();
    }
  }

  // Frees a block of the least recently used size. There are at most eight
  // sizes per power of two.
  void FreeStalest() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    auto stalest = free_.end();
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      if (it->second.blocks.empty()) continue;
      if (stalest == free_.end() ||
          it->second.last_use < stalest->second.last_use) {
        stalest = it;
      }
    }
    FreeBlock(stalest->second.blocks.back().data, stalest->first);
    stalest->second.blocks.pop_back();
    usage_.cached_bytes -= stalest->first;
  }

  Mutex mutex_;
  std::unordered_map<size_t, Blocks> free_ ABSL_GUARDED_BY(mutex_);
  BufferUsage usage_ ABSL_GUARDED_BY(mutex_);
  size_t peak_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // peak of live bytes
  uint64_t clock_ ABSL_GUARDED_BY(mutex_) = 0;     // counts uses
};

// Never destroyed: tensors in other static objects may be destroyed later.
BlockCache& Cache() {
  static BlockCache* const cache = new BlockCache;
  return *cache;
}

}  // namespace

std::shared_ptr<std::byte> AllocateBuffer(size_t bytes) {
  const size_t size = BlockSize(bytes);
  return std::shared_ptr<std::byte>(
      Cache().Take(size).data,
      [size](std::byte* data) { Cache().Return({.data = data}, size); });
}

absl::StatusOr<std::shared_ptr<std::byte>> TryAllocateBuffer(size_t bytes) {
  try {
    return AllocateBuffer(bytes);
  } catch (const std::bad_alloc&) {
    return NoMemoryError(
        absl::StrCat("there is no memory for ", bytes, " bytes"));
  }
}

std::shared_ptr<std::byte> AllocateZeroRows(size_t row_bytes,
                                            std::vector<bool> written) {
  const size_t rows = written.size(), size = BlockSize(row_bytes * rows);
  Block block = Cache().Take(size, row_bytes, rows);
  if (block.row_bytes != row_bytes || block.written.size() != rows) {
    block.row_bytes = row_bytes;
    block.written.assign(rows, true);
  }
  ParallelFor(static_cast<int64_t>(rows), [&](int64_t i) {
    if (block.written[i] && !written[i]) {
      std::memset(block.data + i * row_bytes, 0, row_bytes);
    }
  });
  block.written = std::move(written);
  std::byte* const data = block.data;
  return std::shared_ptr<std::byte>(
      data, [size, block = std::move(block)](std::byte*) mutable {
        Cache().Return(std::move(block), size);
      });
}

BufferUsage GetBufferUsage() { return Cache().usage(); }

void TrimBufferCache() {
  Cache().Trim();
  malloc_trim(/*pad=*/0);
}

}  // namespace gshard
