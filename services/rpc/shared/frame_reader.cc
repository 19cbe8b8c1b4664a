#include "services/rpc/shared/frame_reader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/tensor/buffer.h"

namespace gshard {

absl::StatusOr<std::optional<ExpertFrame>> FrameReader::Next() {
  while (!ended_) {
    void* to = &prefix_;
    size_t bytes = sizeof(prefix_);
    if (stage_ == Stage::kHeader) {
      to = header_.data();
      bytes = header_.size();
    } else if (stage_ == Stage::kPayload) {
      to = payload_.get();
      bytes = prefix_.payload_bytes;
    }
    ASSIGN_OR_RETURN(const size_t available, ring_.Available());
    const size_t part = std::min(available, bytes - copied_);
    ring_.Get(static_cast<char*>(to) + copied_, part);
    copied_ += part;
    if (copied_ < bytes) break;
    copied_ = 0;
    switch (stage_) {
      case Stage::kPrefix:
        RETURN_IF_ERROR(BeginHeader());
        break;
      case Stage::kHeader:
        RETURN_IF_ERROR(BeginPayload());
        break;
      case Stage::kPayload:
        ring_.Release();
        frame_.tensors = WrapTensors(frame_.header.tensors(), places_,
                                     std::exchange(payload_, nullptr));
        stage_ = Stage::kPrefix;
        return std::optional<ExpertFrame>(std::exchange(frame_, {}));
    }
  }
  ring_.Release();
  return std::nullopt;
}

absl::Status FrameReader::BeginHeader() {
  if (prefix_.what == FramePrefix::kEnd) {
    ended_ = true;
    return absl::OkStatus();
  }
  if (prefix_.what != FramePrefix::kFrame) {
    return absl::InvalidArgumentError(absl::StrCat(
        "shared memory: expected the prefix of a frame, got ", prefix_.what));
  }
  RETURN_IF_ERROR(CheckHeaderBytes(prefix_.header_bytes, limits_));
  RETURN_IF_ERROR(CheckFrameBytes(prefix_.payload_bytes, limits_));
  RETURN_IF_ERROR(
      CheckFrameBytes(prefix_.header_bytes + prefix_.payload_bytes, limits_));
  header_.resize(prefix_.header_bytes);
  stage_ = Stage::kHeader;
  return absl::OkStatus();
}

absl::Status FrameReader::BeginPayload() {
  if (!frame_.header.ParseFromString(header_)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "not a frame: the header is not a ", frame_.header.GetTypeName()));
  }
  ASSIGN_OR_RETURN(places_,
                   CheckedTensorPlaces(frame_.header.tensors(),
                                       prefix_.payload_bytes, limits_));
  ASSIGN_OR_RETURN(payload_, TryAllocateBuffer(prefix_.payload_bytes));
  stage_ = Stage::kPayload;
  return absl::OkStatus();
}

}  // namespace gshard
