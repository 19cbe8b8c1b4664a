// TokenizedText: sentence pairs as piece ids, by index. Dataset has them in
// memory; StreamedText reads them on demand. Both give the same for the same
// files.

#ifndef SERVICES_DATA_TOKENIZED_TEXT_H_
#define SERVICES_DATA_TOKENIZED_TEXT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "services/data/text_report.h"

namespace gshard {

struct TextOptions {
  // Pairs with more pieces on a side are skipped. The language tag and the
  // end-of-sentence piece count.
  int32_t max_length = 128;
};

struct PairLengths {
  int32_t longest = 0;  // max(source, target) pieces, for batch sizes
  int32_t target = 0;
};

// One pair.
struct PieceIds {
  std::vector<int32_t> source;  // tag, pieces, end of sentence
  std::vector<int32_t> target;  // pieces, end of sentence
};

// Const access from any thread.
class TokenizedText {
 public:
  virtual ~TokenizedText() = default;

  virtual int32_t size() const = 0;

  // REQUIRES, here and below: 0 <= index < size().
  virtual PairLengths lengths(int32_t index) const = 0;
  // Index in languages() of the source's language, and index of its file.
  virtual int32_t language(int32_t index) const = 0;
  virtual int32_t file(int32_t index) const = 0;

  // Languages of the pairs, in order of first appearance.
  virtual const std::vector<std::string>& languages() const = 0;

  // The pairs at `indices`, in that order.
  virtual absl::StatusOr<std::vector<PieceIds>> Read(
      absl::Span<const int32_t> indices) const = 0;

  virtual const TextReport& report() const = 0;

  virtual int32_t pad_id() const = 0;  // pads sources
  virtual int32_t target_pad_id() const = 0;
  virtual int32_t bos_id() const = 0;
};

}  // namespace gshard

#endif  // SERVICES_DATA_TOKENIZED_TEXT_H_
