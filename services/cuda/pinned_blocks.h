// PinnedBlocks: pinned (page-locked) host memory, which the GPU reads and
// writes by DMA.
//
// Pinning memory takes longer than copying it, so blocks whose tensors are
// freed are kept for reuse, up to a limit.

#ifndef SERVICES_CUDA_PINNED_BLOCKS_H_
#define SERVICES_CUDA_PINNED_BLOCKS_H_

#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "services/base/mutex.h"
#include "services/tensor/tensor.h"

namespace gshard {

// Thread-safe. Tensors may outlive this object.
class PinnedBlocks {
 public:
  // Limit on the bytes of idle blocks, which no tensor uses.
  static constexpr size_t kMostIdleBytes = size_t{256} << 20;

  // For GPU number `gpu`.
  explicit PinnedBlocks(int gpu) : blocks_(std::make_shared<Blocks>(gpu)) {}

  // A host tensor in pinned memory, contents undefined. Errors:
  // ResourceExhausted; Internal, which may be the fault of an earlier kernel.
  absl::StatusOr<Tensor> New(ElementType type, Dims dims);

 private:
  struct Blocks {
    explicit Blocks(int number) : gpu(number) {}
    ~Blocks();
    void Free(void* block) const;

    const int gpu;
    Mutex mutex;
    size_t idle_bytes ABSL_GUARDED_BY(mutex) = 0;
    // Idle blocks by size, a power of two.
    std::map<size_t, std::vector<std::byte*>> idle ABSL_GUARDED_BY(mutex);
  };

  const std::shared_ptr<Blocks> blocks_;
};

}  // namespace gshard

#endif  // SERVICES_CUDA_PINNED_BLOCKS_H_
