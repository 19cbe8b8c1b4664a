// SharedRing: the bytes that one party of a SharedMemory sends to the other, in
// a ring: a pipe that costs a copy in and a copy out, and a wake-up only if the
// other side sleeps. Neither end blocks.
//
// An end trusts its own count and checks the peer's, so that whatever the peer
// writes no byte outside of the ring is touched. Not thread-safe.

#ifndef SERVICES_RPC_SHARED_SHARED_RING_H_
#define SERVICES_RPC_SHARED_SHARED_RING_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "services/rpc/shared/shared_memory.h"

namespace gshard {

class SharedRingWriter {
 public:
  // `memory`, not owned, outlives this.
  explicit SharedRingWriter(const SharedMemory& memory);

  // Bytes that may be put. Errors: InvalidArgument if the peer says to have
  // read what it cannot.
  absl::StatusOr<size_t> Room() const;

  // REQUIRES: Room() has said that there is room for `bytes`.
  void Put(const void* from, size_t bytes);

  // Shows the peer what was put, and wakes it; Put() does now and then.
  void Flush();

 private:
  const absl::Span<char> ring_;
  SharedMemory::Words& own_;
  SharedMemory::Words& peers_;
  uint64_t written_ = 0;
  uint64_t shown_ = 0;
};

class SharedRingReader {
 public:
  explicit SharedRingReader(const SharedMemory& memory);

  // Bytes that may be got. Errors: InvalidArgument if the peer says to have
  // written what it cannot.
  absl::StatusOr<size_t> Available() const;

  // Copies. REQUIRES: Available() has said that there are `bytes`.
  void Get(void* to, size_t bytes);

  // Lets the peer write where bytes were got; Get() does now and then.
  void Release();

  // Bytes got, ever.
  uint64_t count() const { return read_; }

 private:
  const absl::Span<const char> ring_;
  SharedMemory::Words& own_;
  SharedMemory::Words& peers_;
  uint64_t read_ = 0;
  uint64_t released_ = 0;
};

}  // namespace gshard

#endif  // SERVICES_RPC_SHARED_SHARED_RING_H_
