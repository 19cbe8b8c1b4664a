// Memory of tensors: 64-byte aligned blocks, recycled.
//
// A training step asks for the same sizes over and over; going to the kernel
// for each costs more in page faults than many operators do in arithmetic.
// Freed blocks are therefore kept, up to a limit, and handed out again.

#ifndef SERVICES_TENSOR_BUFFER_H_
#define SERVICES_TENSOR_BUFFER_H_

#include <cstddef>
#include <memory>

namespace gshard {

// A block of at least `bytes` bytes (0 allowed), 64-byte aligned, contents
// undefined. Thread-safe.
std::shared_ptr<std::byte> AllocateBuffer(size_t bytes);

// Bytes handed out and not yet returned, and bytes kept for reuse.
struct BufferUsage {
  size_t live_bytes = 0;
  size_t cached_bytes = 0;
};
BufferUsage GetBufferUsage();

// Returns cached blocks to the system, and what the heap has between blocks.
void TrimBufferCache();

}  // namespace gshard

#endif  // SERVICES_TENSOR_BUFFER_H_
