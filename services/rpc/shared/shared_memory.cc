#include "services/rpc/shared/shared_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <new>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "services/base/check.h"
#include "services/base/status_macros.h"

namespace gshard {
namespace {

constexpr size_t kKeyBytes = 16;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// The beginning of the memory; the rings follow.
struct Head {
  char key[kKeyBytes];
  SharedMemory::Words words[2];
};
constexpr size_t kHeadBytes = 4096;
static_assert(sizeof(Head) <= kHeadBytes);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

size_t TotalBytes(size_t ring_bytes) { return kHeadBytes + 2 * ring_bytes; }

absl::Status CheckRingBytes(uint64_t bytes) {
  if (bytes >= kMinRingBytes && bytes <= kMaxRingBytes &&
      (bytes & (bytes - 1)) == 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("shared memory: a ring has a power of two of bytes, from ",
                   kMinRingBytes, " to ", kMaxRingBytes, ", got ", bytes));
}

absl::StatusOr<MemoryShare> TakeShare(const MemoryAccount& account,
                                      size_t ring_bytes) {
  RETURN_IF_ERROR(CheckRingBytes(ring_bytes));
  MemoryShare share(account);
  if (!share.Take(static_cast<int64_t>(TotalBytes(ring_bytes)))) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "shared memory: ", TotalBytes(ring_bytes), " bytes are needed, ",
        account.free(), " may still be shared"));
  }
  return share;
}

absl::Status LastError(absl::string_view what) {
  const std::string text =
      absl::StrCat("shared memory: ", what, ": ", strerror(errno));
  if (errno == EACCES || errno == EPERM) {
    return absl::PermissionDeniedError(text);
  }
  if (errno == ENOENT) return absl::NotFoundError(text);
  return absl::UnavailableError(text);
}

}  // namespace

absl::StatusOr<std::unique_ptr<SharedMemory>> SharedMemory::Create(
    size_t ring_bytes, const MemoryAccount& account) {
  ASSIGN_OR_RETURN(MemoryShare share, TakeShare(account, ring_bytes));
  std::unique_ptr<SharedMemory> memory(
      new SharedMemory(kOfferer, ring_bytes, std::move(share)));
  memory->descriptor_ =
      ::memfd_create("gshard-stream", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (memory->descriptor_ < 0) return LastError("it cannot be made");
  if (::ftruncate(memory->descriptor_,
                  static_cast<off_t>(TotalBytes(ring_bytes))) != 0 ||
      ::fcntl(memory->descriptor_, F_ADD_SEALS, kSeals) != 0) {
    return LastError("it cannot be made");
  }
  RETURN_IF_ERROR(memory->Map(memory->descriptor_));
  auto* const head = new (memory->memory_) Head();
  CHECK(::getrandom(head->key, kKeyBytes, 0) == kKeyBytes);
  return memory;
}

absl::StatusOr<std::unique_ptr<SharedMemory>> SharedMemory::Open(
    const v1::SharedMemoryOffer& offer, const MemoryAccount& account,
    uid_t user) {
  RETURN_IF_ERROR(CheckRingBytes(offer.ring_bytes()));
  if (offer.process() < 1 || offer.file_descriptor() < 0 ||
      offer.key().size() != kKeyBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "shared memory: expected a process, a descriptor and a key of ",
        kKeyBytes, " bytes, got ", offer.process(), ", ",
        offer.file_descriptor(), " and ", offer.key().size(), " bytes"));
  }
  ASSIGN_OR_RETURN(MemoryShare share, TakeShare(account, offer.ring_bytes()));
  // At first only with O_PATH, since the peer may refer to a device, or to a
  // pipe on which an ordinary open would block.
  const std::string path =
      absl::StrCat("/proc/", offer.process(), "/fd/", offer.file_descriptor());
  const int place = ::open(path.c_str(), O_PATH | O_CLOEXEC);
  if (place < 0) return LastError("it cannot be found");
  const absl::Cleanup close_place = [place] { ::close(place); };
  struct stat stat;
  struct statfs system;
  if (::fstat(place, &stat) != 0 || ::fstatfs(place, &system) != 0) {
    return LastError("it cannot be looked at");
  }
  const size_t bytes = TotalBytes(offer.ring_bytes());
  if (!S_ISREG(stat.st_mode) || system.f_type != TMPFS_MAGIC ||
      static_cast<size_t>(stat.st_size) != bytes) {
    return absl::NotFoundError(absl::StrCat(
        "shared memory: expected ", bytes,
        " bytes of memory, there is something else, as on another machine"));
  }
  if (stat.st_uid != user) {
    return absl::PermissionDeniedError(
        absl::StrCat("shared memory: it must be of user ", user,
                     ", it is of user ", stat.st_uid));
  }
  const int descriptor = ::open(absl::StrCat("/proc/self/fd/", place).c_str(),
                                O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (descriptor < 0) return LastError("it cannot be opened");
  const absl::Cleanup close_descriptor = [descriptor] { ::close(descriptor); };
  // If the memory could shrink, accesses would end this process by SIGBUS.
  if ((::fcntl(descriptor, F_GET_SEALS) & kSeals) != kSeals ||
      ::fstat(descriptor, &stat) != 0 ||
      static_cast<size_t>(stat.st_size) != bytes) {
    return absl::InvalidArgumentError("shared memory: its size is not sealed");
  }
  std::unique_ptr<SharedMemory> memory(
      new SharedMemory(kOpener, offer.ring_bytes(), std::move(share)));
  RETURN_IF_ERROR(memory->Map(descriptor));
  // Before anything is written to the memory.
  if (::memcmp(memory->memory_, offer.key().data(), kKeyBytes) != 0) {
    return absl::NotFoundError(
        "shared memory: there is another one in its place, as on another "
        "machine");
  }
  return memory;
}

absl::Status SharedMemory::Map(int descriptor) {
  void* const memory =
      ::mmap(nullptr, TotalBytes(ring_bytes_), PROT_READ | PROT_WRITE,
             MAP_SHARED, descriptor, 0);
  if (memory == MAP_FAILED) return LastError("it cannot be mapped");
  memory_ = static_cast<char*>(memory);
  return absl::OkStatus();
}

SharedMemory::~SharedMemory() {
  if (memory_ != nullptr) ::munmap(memory_, TotalBytes(ring_bytes_));
  Withdraw();
}

v1::SharedMemoryOffer SharedMemory::offer() const {
  v1::SharedMemoryOffer offer;
  offer.set_process(::getpid());
  offer.set_file_descriptor(descriptor_);
  offer.set_key(memory_, kKeyBytes);
  offer.set_ring_bytes(ring_bytes_);
  return offer;
}

void SharedMemory::Withdraw() {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
}

SharedMemory::Words& SharedMemory::words(Party party) const {
  return reinterpret_cast<Head*>(memory_)->words[party];
}

absl::Span<char> SharedMemory::ring(Party party) const {
  return {memory_ + kHeadBytes + party * ring_bytes_, ring_bytes_};
}

}  // namespace gshard
