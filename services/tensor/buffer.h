// Tensor memory: 64-byte aligned blocks, recycled.
//
// A training step allocates the same sizes over and over; getting each from the
// kernel costs more in page faults than many operators do in arithmetic. Freed
// blocks are therefore cached, up to a limit, and reused.

#ifndef SERVICES_TENSOR_BUFFER_H_
#define SERVICES_TENSOR_BUFFER_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"

namespace gshard {

// A block of at least `bytes` bytes (0 allowed), 64-byte aligned, contents
// undefined. Throws std::bad_alloc if there is no memory. Thread-safe.
std::shared_ptr<std::byte> AllocateBuffer(size_t bytes);

// The same for bytes that a peer sends, on a thread that must not throw.
// Errors: ResourceExhausted if there is no memory.
absl::StatusOr<std::shared_ptr<std::byte>> TryAllocateBuffer(size_t bytes);

// A block of rows of `row_bytes` each, most of which are zeros and stay so:
// rows in `written` have undefined contents, all others are zeros, and nobody
// may ever write to these. The cache remembers which rows of a returned block
// were written, and clears only those on reuse: the cost depends on the written
// rows alone.
std::shared_ptr<std::byte> AllocateZeroRows(size_t row_bytes,
                                            std::vector<bool> written);

// Bytes in use, and bytes cached for reuse.
struct BufferUsage {
  size_t live_bytes = 0;
  size_t cached_bytes = 0;
};
BufferUsage GetBufferUsage();

// Returns cached blocks and free heap memory to the system.
void TrimBufferCache();

}  // namespace gshard

#endif  // SERVICES_TENSOR_BUFFER_H_
