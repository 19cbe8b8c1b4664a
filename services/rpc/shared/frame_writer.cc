#include "services/rpc/shared/frame_writer.h"

#include <algorithm>
#include <utility>

#include "services/base/check.h"
#include "services/base/status_macros.h"

namespace gshard {
FrameWriter::FrameWriter(ExpertFrame frame)
    : tensors_(std::move(frame.tensors)) {
  CHECK(frame.header.tensors_size() == static_cast<int>(tensors_.size()));
  const std::string header = frame.header.SerializeAsString();
  const size_t payload_bytes = PayloadBytes(tensors_);
  const FramePrefix prefix{.what = FramePrefix::kFrame,
                           .header_bytes = static_cast<uint32_t>(header.size()),
                           .payload_bytes = payload_bytes};
  head_.reserve(sizeof(prefix) + header.size());
  head_.append(reinterpret_cast<const char*>(&prefix), sizeof(prefix));
  head_ += header;
  Add(head_.data(), head_.size());
  size_t offset = 0;
  for (const Tensor& tensor : tensors_) {
    const size_t over = offset % kPayloadAlignment;
    const size_t padding = over == 0 ? 0 : kPayloadAlignment - over;
    Add(kPayloadPadding, padding);
    Add(tensor.raw(), tensor.bytes());
    offset += padding + tensor.bytes();
  }
  CHECK(offset == payload_bytes);
}

FrameWriter::FrameWriter() {
  const FramePrefix prefix;
  head_.assign(reinterpret_cast<const char*>(&prefix), sizeof(prefix));
  Add(head_.data(), head_.size());
}

void FrameWriter::Add(const void* begin, size_t bytes) {
  if (bytes == 0) return;
  parts_.push_back({static_cast<const char*>(begin), bytes});
  bytes_ += bytes;
  left_ += bytes;
}

absl::StatusOr<bool> FrameWriter::WriteTo(SharedRingWriter& ring) {
  while (next_ < parts_.size()) {
    ASSIGN_OR_RETURN(size_t room, ring.Room());
    if (room == 0) break;
    while (next_ < parts_.size() && room > 0) {
      absl::Span<const char>& part = parts_[next_];
      const size_t bytes = std::min(room, part.size());
      ring.Put(part.data(), bytes);
      part.remove_prefix(bytes);
      room -= bytes;
      left_ -= bytes;
      if (part.empty()) ++next_;
    }
  }
  ring.Flush();
  return next_ == parts_.size();
}

}  // namespace gshard
