#include "services/data/batch.h"

#include <algorithm>

#include "services/base/check.h"
#include "services/base/status_macros.h"

namespace gshard {

absl::StatusOr<Batch> ReadBatch(const TokenizedText& text,
                                absl::Span<const int32_t> indices) {
  CHECK(!indices.empty());
  ASSIGN_OR_RETURN(const std::vector<PieceIds> pairs, text.Read(indices));
  const auto sentences = static_cast<int64_t>(pairs.size());
  int64_t source_width = 0, target_width = 0;
  for (const PieceIds& pair : pairs) {
    source_width = std::max<int64_t>(source_width, pair.source.size());
    target_width = std::max<int64_t>(target_width, pair.target.size());
  }
  const auto ints = [](Dims dims) { return Tensor(ElementType::kInt32, dims); };
  Batch batch{ints({sentences, source_width}), ints({sentences}),
              ints({sentences, target_width}), ints({sentences, target_width}),
              ints({sentences})};
  for (int64_t b = 0; b < sentences; ++b) {
    const std::vector<int32_t>& source = pairs[b].source;
    const std::vector<int32_t>& target = pairs[b].target;
    int32_t* row = batch.source.i32() + b * source_width;
    std::fill(std::copy(source.begin(), source.end(), row), row + source_width,
              text.pad_id());
    row = batch.target_input.i32() + b * target_width;
    row[0] = text.bos_id();
    std::fill(std::copy(target.begin(), target.end() - 1, row + 1),
              row + target_width, text.target_pad_id());
    row = batch.target_labels.i32() + b * target_width;
    std::fill(std::copy(target.begin(), target.end(), row), row + target_width,
              Batch::kNoLabel);
    batch.source_lengths.i32()[b] = static_cast<int32_t>(source.size());
    batch.target_lengths.i32()[b] = static_cast<int32_t>(target.size());
    batch.source_tokens += static_cast<int64_t>(source.size());
    batch.target_tokens += static_cast<int64_t>(target.size());
  }
  return batch;
}

}  // namespace gshard
