// SharedMemory: memory shared by two processes of one user on one machine, for
// a stream between them. It contains two rings of bytes, one for each
// direction, and their control words.
//
// One side creates the memory and offers it to the other on a stream that has
// authenticated both; the other side opens it. The memory has no name by which
// others could find it, and no third process takes part: the offer names a
// process and one of its descriptors, and has a random key that is in the
// memory as well. So the kernel denies access to everyone who may not inspect
// the process, and the key proves that the named process is the one that made
// the offer, not one with the same number on another machine or in another
// container.
//
// Each side may write anything to the memory at any time. A reader therefore
// copies data before it checks them.

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

// Limits of the size of a ring, which is a power of two bytes.
inline constexpr size_t kMinRingBytes = size_t{64} << 10;
inline constexpr size_t kMaxRingBytes = size_t{64} << 20;

class SharedMemory {
 public:
  enum Party { kOfferer = 0, kOpener = 1 };

  // Written by one party only, except for `bell`.
  struct Words {
    alignas(64) std::atomic<uint32_t> bell;     // see shared_bell.h
    std::atomic<uint32_t> wants;                // see shared_bell.h
    alignas(64) std::atomic<uint64_t> written;  // total bytes to its ring
    alignas(64) std::atomic<uint64_t> read;     // total bytes from the peer's
  };

  // Both functions charge the memory to `account`: shared memory belongs to
  // each of the two processes alike. Errors: ResourceExhausted if the account
  // has too little left; InvalidArgument for an invalid ring size; Unavailable
  // if the kernel cannot provide the memory.
  static absl::StatusOr<std::unique_ptr<SharedMemory>> Create(
      size_t ring_bytes, const MemoryAccount& account);

  // Opens the memory that an untrusted peer offers. It must belong to `user`,
  // have the stated size, and be sealed against shrinking. Does not block, and
  // opens nothing else that the offer may refer to. Errors: as above;
  // PermissionDenied if it belongs to another user, or to a process that this
  // one may not inspect; NotFound if there is none, for example because the
  // peer is on another machine.
  static absl::StatusOr<std::unique_ptr<SharedMemory>> Open(
      const v1::SharedMemoryOffer& offer, const MemoryAccount& account,
      uid_t user = geteuid());

  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // The offer of memory that Create() has made.
  v1::SharedMemoryOffer offer() const;
  // Closes the descriptor: nobody can open the memory any more.
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
