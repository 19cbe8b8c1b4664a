#include "services/exchange/segment_calls.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace gshard {

absl::StatusOr<SegmentCalls> ReadSegmentCalls(
    std::initializer_list<const Program*> programs) {
  SegmentCalls calls;
  for (const Program* program : programs) {
    for (const Node* node : program->NodesOf("call_segment")) {
      SegmentCall call = GetSegmentCall(*node);
      for (const ValueType& type : call.reply_types) {
        if (!type.shape.empty() &&
            std::all_of(type.shape.begin() + 1, type.shape.end(),
                        [](const Dim& dim) { return dim.is_static(); })) {
          continue;
        }
        return absl::UnimplementedError(
            absl::StrCat("a reply of segment ", call.segment,
                         " has no width: ", ShapeToString(type.shape)));
      }
      const std::string name = call.segment;
      if (!calls.emplace(name, std::move(call)).second) {
        return absl::InternalError(
            absl::StrCat("segment ", name, " is called twice"));
      }
    }
  }
  return calls;
}

Dims ReplyDims(const SegmentCall& call, int64_t r, int64_t rows) {
  const Shape& shape = call.reply_types[r].shape;
  Dims dims = {rows};
  for (size_t d = 1; d < shape.size(); ++d) dims.push_back(shape[d].size());
  return dims;
}

}  // namespace gshard
