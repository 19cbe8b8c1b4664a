// SharedRing: the bytes that one party of a SharedMemory sends to the other, in
// a ring. A pipe with one copy in and one copy out, and a wake-up only if the
// other side sleeps. Neither end blocks.
//
// Each end trusts its own byte count and checks the peer's, so that it never
// accesses memory outside the ring, whatever the peer writes. Not thread-safe.

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
  // `memory` is not owned and must outlive this object.
  explicit SharedRingWriter(const SharedMemory& memory);

  // Bytes that may be written now. Errors: InvalidArgument if the peer's count
  // of read bytes is impossible.
  absl::StatusOr<size_t> Room() const;

  // REQUIRES: at least `bytes` of Room().
  void Put(const void* from, size_t bytes);

  // Publishes the written bytes to the peer and wakes it; Put() does so now and
  // then.
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

  // Bytes that may be read now. Errors: InvalidArgument if the peer's count of
  // written bytes is impossible.
  absl::StatusOr<size_t> Available() const;

  // Copies. REQUIRES: at least `bytes` Available().
  void Get(void* to, size_t bytes);

  // Releases the space of the bytes read to the peer; Get() does so now and
  // then.
  void Release();

  // Total bytes read.
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
