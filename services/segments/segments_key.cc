#include "services/segments/segments_key.h"

#include "services/base/random.h"
#include "services/graph/text.h"

namespace gshard {

uint64_t SegmentsKey(uint64_t key, const std::vector<Segment>& segments) {
  for (const Segment& segment : segments) {
    key = FoldIn(FoldIn(key, segment.name), ProgramToText(segment.program));
  }
  return key;
}

absl::Status CheckSegmentsKey(uint64_t told, uint64_t derived) {
  if (told == 0 || told == derived) return absl::OkStatus();
  return absl::UnimplementedError(
      "segments_key: this router's release derives other segments of the model "
      "than the coordinator's, by which the expert workers run; replace the "
      "older of the two");
}

}  // namespace gshard
