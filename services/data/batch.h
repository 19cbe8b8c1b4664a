// Batch: sentences as padded tensors, ready for the model.
//
// B sentences, Ls and Lt the longest source and target. Position l of a target
// row is predicted from target_input[0..l]: the input is the labels shifted
// right, after the beginning-of-sentence piece.

#ifndef SERVICES_DATA_BATCH_H_
#define SERVICES_DATA_BATCH_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "services/data/tokenized_text.h"
#include "services/tensor/tensor.h"

namespace gshard {

struct Batch {
  static constexpr int32_t kNoLabel = -1;

  Tensor source;              // i32 [B, Ls]: tag, pieces, eos, then pad
  Tensor source_lengths;      // i32 [B]
  Tensor target_input;        // i32 [B, Lt]: bos, pieces, then pad
  Tensor target_labels;       // i32 [B, Lt]: pieces, eos, then kNoLabel
  Tensor target_lengths;      // i32 [B]
  int64_t source_tokens = 0;  // without padding
  int64_t target_tokens = 0;
};

// REQUIRES: `indices` is not empty and in [0, text.size()). Errors: those of
// text.Read(), of which a Dataset has none.
absl::StatusOr<Batch> ReadBatch(const TokenizedText& text,
                                absl::Span<const int32_t> indices);

}  // namespace gshard

#endif  // SERVICES_DATA_BATCH_H_
