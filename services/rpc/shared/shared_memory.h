// SharedMemory: memory that two processes of one user on one machine share, for
// a stream between them: two rings of bytes, one each way, and the words that
// they go by.
//
// One side creates it and offers it to the other by a stream that has told both
// who they are; the other opens it. There is no name that others could find,
// and no third process: the offer says which descriptor of which process it is,
// and has a random key, which is in the memory, too. So the kernel refuses
// whoever may not look into the process, and the key tells that this process is
// the one that made the offer, and not another machine's or container's of the
// same number.
//
// Each side writes to the memory what it likes and when it likes. What is read
// from it is checked by the reader, after it was copied.

#ifndef SERVICES_RPC_SHARED_SHARED_MEMORY_H_
#define SERVICES_RPC_SHARED_SHARED_MEMORY_H_

#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/gshard/v1/expert.pb.h"
#include "services/base/memory_account.h"

namespace gshard {

// Bytes that a ring may have: a power of two.
inline constexpr size_t kMinRingBytes = size_t{64} << 10;
inline constexpr size_t kMaxRingBytes = size_t{64} << 20;

class SharedMemory {
 public:
  enum Party { kOfferer = 0, kOpener = 1 };

  // What one party alone writes, but for `bell`.
  struct Words {
    alignas(64) std::atomic<uint32_t> bell;     // see shared_bell.h
    std::atomic<uint32_t> wants;                // likewise
    alignas(64) std::atomic<uint64_t> written;  // bytes to its ring, ever
    alignas(64) std::atomic<uint64_t> read;     // bytes of the other's, ever
  };

  // Both count in `account`, which the memory must fit in: what a process
  // shares is its own and the other's alike. Errors: ResourceExhausted if it
  // does not; InvalidArgument for a size that a ring may not have; Unavailable
  // if the kernel has no such memory.
  static absl::StatusOr<std::unique_ptr<SharedMemory>> Create(
      size_t ring_bytes, const MemoryAccount& account);

  // What a peer offers, who is not trusted. It must belong to `user`, have the
  // size that is said, and be such that it cannot shrink. Does not block, and
  // touches nothing else that the peer may point to. Errors as above;
  // PermissionDenied if it is another user's or of a process that this one may
  // not look into; NotFound if there is none, as on another machine.
  static absl::StatusOr<std::unique_ptr<SharedMemory>> Open(
      const v1::SharedMemoryOffer& offer, const MemoryAccount& account,
      uid_t user = geteuid());

  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // Of what Create() has made.
  v1::SharedMemoryOffer offer() const;
  // Nobody can open it any more.
  void Withdraw();

  Party party() const { return party_; }
  Words& words(Party party) const;
  // The ring that `party` writes.
  absl::Span<char> ring(Party party) const;

 private:
  SharedMemory(Party party, size_t ring_bytes, MemoryShare share)
      : party_(party), ring_bytes_(ring_bytes), share_(std::move(share)) {}

  absl::Status Map(int descriptor);

  const Party party_;
  const size_t ring_bytes_;
  const MemoryShare share_;
  int descriptor_ = -1;
  char* memory_ = nullptr;
};

}  // namespace gshard

#endif  // SERVICES_RPC_SHARED_SHARED_MEMORY_H_
