// FrameReader: takes frames out of a SharedRing, of a peer that is not trusted.

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
  // `ring`, not owned, outlives this.
  FrameReader(SharedRingReader* ring, const FrameLimits& limits)
      : ring_(*ring), limits_(limits) {}

  // Copies what has come; a frame once all of it has, nothing before. No
  // memory is taken for a header or a payload before its size was checked.
  // Errors, after which nothing else is to be read: as Available() and
  // DecodeFrame().
  absl::StatusOr<std::optional<ExpertFrame>> Next();

  // The peer has said that no frame follows.
  bool ended() const { return ended_; }

 private:
  // What is being copied.
  enum class Stage { kPrefix, kHeader, kPayload };

  absl::Status BeginHeader();
  absl::Status BeginPayload();

  SharedRingReader& ring_;
  const FrameLimits limits_;
  Stage stage_ = Stage::kPrefix;
  size_t copied_ = 0;  // of the stage
  FramePrefix prefix_;
  std::string header_;
  ExpertFrame frame_;
  std::vector<size_t> places_;
  std::shared_ptr<std::byte> payload_;
  bool ended_ = false;
};

}  // namespace gshard

#endif  // SERVICES_RPC_SHARED_FRAME_READER_H_
