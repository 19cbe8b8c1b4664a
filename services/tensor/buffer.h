// Memory of tensors: 64-byte aligned blocks, recycled.
//
// A training step asks for the same sizes over and over; going to the kernel
// for each costs more in page faults than many operators do in arithmetic.
// Freed blocks are therefore kept, up to a limit, and handed out again.

#ifndef SERVICES_TENSOR_BUFFER_H_
#define SERVICES_TENSOR_BUFFER_H_

#include <cstddef>
#include <memory>
#include <vector>

namespace gshard {

// A block of at least `bytes` bytes (0 allowed), 64-byte aligned, contents
// undefined. Thread-safe.
std::shared_ptr<std::byte> AllocateBuffer(size_t bytes);

// A block of rows of `row_bytes` each, most of which are zeros and stay so: the
// contents of those in `written` are undefined, all others are zeros, and
// nobody may ever write to these. What comes back is known for what was
// written, and only that is cleared when it is handed out so again: this takes
// time for rows that are written, not for others.
std::shared_ptr<std::byte> AllocateZeroRows(size_t row_bytes,
                                            std::vector<bool> written);

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
