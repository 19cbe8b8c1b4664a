// PinnedBlocks: host memory that a GPU reads and writes by itself.
//
// To pin memory takes longer than to copy it: blocks that tensors give back are
// kept, up to a limit, and handed out again.

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

// Thread-safe. Tensors may outlive it.
class PinnedBlocks {
 public:
  // Keeps at most this many bytes that no tensor has.
  static constexpr size_t kMostIdleBytes = size_t{256} << 20;

  // Of GPU `gpu`.
  explicit PinnedBlocks(int gpu) : blocks_(std::make_shared<Blocks>(gpu)) {}

  // A host tensor, contents undefined. Errors: ResourceExhausted.
  absl::StatusOr<Tensor> New(ElementType type, Dims dims);

 private:
  struct Blocks {
    explicit Blocks(int number) : gpu(number) {}
    ~Blocks();
    void Free(void* block) const;

    const int gpu;
    Mutex mutex;
    size_t idle_bytes ABSL_GUARDED_BY(mutex) = 0;
    // By size, a power of two.
    std::map<size_t, std::vector<std::byte*>> idle ABSL_GUARDED_BY(mutex);
  };

  const std::shared_ptr<Blocks> blocks_;
};

}  // namespace gshard

#endif  // SERVICES_CUDA_PINNED_BLOCKS_H_
