// FrameWriter: writes one frame into a SharedRing, directly from the memory of
// its tensors.

#ifndef SERVICES_RPC_SHARED_FRAME_WRITER_H_
#define SERVICES_RPC_SHARED_FRAME_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "services/rpc/shared/shared_ring.h"
#include "services/rpc/wire/tensor_frame.h"

namespace gshard {

// Precedes each frame in a ring; see SharedMemoryOffer.
struct FramePrefix {
  enum What : uint32_t { kFrame = 1, kEnd = 2 };
  uint32_t what = kEnd;
  uint32_t header_bytes = 0;
  uint64_t payload_bytes = 0;
};
static_assert(sizeof(FramePrefix) == 16);

class FrameWriter {
 public:
  // Keeps the tensors alive. REQUIRES: as EncodeFrame().
  explicit FrameWriter(ExpertFrame frame);
  // An end mark, which tells the peer that no frame follows.
  FrameWriter();

  FrameWriter(const FrameWriter&) = delete;
  FrameWriter& operator=(const FrameWriter&) = delete;

  // Bytes that the frame takes in the ring.
  size_t bytes() const { return bytes_; }
  // Bytes that are not written yet.
  size_t left() const { return left_; }

  // Writes as much as there is room for; returns true once everything is
  // written. Errors: those of Room().
  absl::StatusOr<bool> WriteTo(SharedRingWriter& ring);

 private:
  void Add(const void* begin, size_t bytes);

  std::string head_;
  const std::vector<Tensor> tensors_;
  std::vector<absl::Span<const char>> parts_;  // parts not written yet
  size_t next_ = 0;                            // index of the first of these
  size_t bytes_ = 0;
  size_t left_ = 0;
};

}  // namespace gshard

#endif  // SERVICES_RPC_SHARED_FRAME_WRITER_H_
