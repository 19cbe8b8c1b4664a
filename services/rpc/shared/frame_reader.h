// FrameReader: reads frames of an untrusted peer from a SharedRing.

#ifndef SERVICES_RPC_SHARED_FRAME_READER_H_
#define SERVICES_RPC_SHARED_FRAME_READER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/rpc/shared/frame_writer.h"
#include "services/rpc/shared/shared_ring.h"
#include "services/rpc/wire/tensor_frame.h"

namespace gshard {

class FrameReader {
 public:
  // `ring` is not owned and must outlive this object.
  FrameReader(SharedRingReader* ring, const FrameLimits& limits)
      : ring_(*ring), limits_(limits) {}

  // Copies the bytes that have arrived. Returns a frame once it is complete,
  // nothing before. Allocates memory for a header or payload only after
  // checking its size. Errors, after which the reader must not be used: those
  // of Available() and DecodeFrame().
  absl::StatusOr<std::optional<ExpertFrame>> Next();

  // The peer has announced that no frame follows.
  bool ended() const { return ended_; }

 private:
  // The part of a frame that is being copied.
  enum class Stage { kPrefix, kHeader, kPayload };

  absl::Status BeginHeader();
  absl::Status BeginPayload();

  SharedRingReader& ring_;
  const FrameLimits limits_;
  Stage stage_ = Stage::kPrefix;
  size_t copied_ = 0;  // bytes of the current stage
  FramePrefix prefix_;
  std::string header_;
  ExpertFrame frame_;
  std::vector<size_t> places_;
  std::shared_ptr<std::byte> payload_;
  bool ended_ = false;
};

}  // namespace gshard

#endif  // SERVICES_RPC_SHARED_FRAME_READER_H_
