#include "services/rpc/shared/shared_ring.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "services/rpc/shared/shared_bell.h"

namespace gshard {
namespace {

// Large messages are published in parts of this size: the peer copies one part
// out while the next is copied in, and both copies hit the cache.
constexpr size_t kShownBytes = size_t{128} << 10;

SharedMemory::Party Other(SharedMemory::Party party) {
  return party == SharedMemory::kOfferer ? SharedMemory::kOpener
                                         : SharedMemory::kOfferer;
}

absl::Status BadCount(absl::string_view what, uint64_t said, uint64_t own) {
  return absl::InvalidArgumentError(
      absl::StrCat("shared memory: the peer says to have ", what, " ", said,
                   " bytes, which cannot be after ", own));
}

}  // namespace

SharedRingWriter::SharedRingWriter(const SharedMemory& memory)
    : ring_(memory.ring(memory.party())),
      own_(memory.words(memory.party())),
      peers_(memory.words(Other(memory.party()))) {}

absl::StatusOr<size_t> SharedRingWriter::Room() const {
  const uint64_t read = peers_.read;
  // Unsigned: if the peer's count is ahead, the difference is huge.
  if (shown_ - read > ring_.size() || written_ - read > ring_.size()) {
    return BadCount("read", read, shown_);
  }
  return ring_.size() - static_cast<size_t>(written_ - read);
}

void SharedRingWriter::Put(const void* from, size_t bytes) {
  const char* begin = static_cast<const char*>(from);
  while (bytes > 0) {
    const size_t at = static_cast<size_t>(written_) & (ring_.size() - 1);
    const size_t part = std::min({bytes, ring_.size() - at, kShownBytes});
    std::memcpy(ring_.data() + at, begin, part);
    written_ += part;
    begin += part;
    bytes -= part;
    if (written_ - shown_ >= kShownBytes) Flush();
  }
}

void SharedRingWriter::Flush() {
  if (shown_ == written_) return;
  shown_ = written_;
  own_.written = written_;
  RingBellFor(peers_, kWantsBytes);
}

SharedRingReader::SharedRingReader(const SharedMemory& memory)
    : ring_(memory.ring(Other(memory.party()))),
      own_(memory.words(memory.party())),
      peers_(memory.words(Other(memory.party()))) {}

absl::StatusOr<size_t> SharedRingReader::Available() const {
  const uint64_t written = peers_.written;
  // The peer knows of no more space than was released.
  if (written - released_ > ring_.size() || written - read_ > ring_.size()) {
    return BadCount("written", written, read_);
  }
  return static_cast<size_t>(written - read_);
}

void SharedRingReader::Get(void* to, size_t bytes) {
  char* begin = static_cast<char*>(to);
  while (bytes > 0) {
    const size_t at = static_cast<size_t>(read_) & (ring_.size() - 1);
    const size_t part = std::min({bytes, ring_.size() - at, kShownBytes});
    std::memcpy(begin, ring_.data() + at, part);
    read_ += part;
    begin += part;
    bytes -= part;
    if (read_ - released_ >= kShownBytes) Release();
  }
}

void SharedRingReader::Release() {
  if (released_ == read_) return;
  released_ = read_;
  own_.read = read_;
  RingBellFor(peers_, kWantsRoom);
}

}  // namespace gshard
