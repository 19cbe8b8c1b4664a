// PairEncoder: encodes a line's pair as piece ids, or says why it is skipped.

#ifndef SERVICES_DATA_PAIR_ENCODER_H_
#define SERVICES_DATA_PAIR_ENCODER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <variant>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "services/data/pair_line.h"
#include "services/data/tokenized_text.h"
#include "services/tokenizer/tokenizer.h"

namespace gshard {

// Vocabularies of the two sides, possibly the same; the source's has the tags.
struct TextTokenizers {
  std::shared_ptr<const Tokenizer> source;
  std::shared_ptr<const Tokenizer> target;
};

// The pair has too many pieces on a side.
struct TooLong {};

using EncodedPair = std::variant<PieceIds, TooLong, LineProblem>;

// Const access from any thread.
class PairEncoder {
 public:
  // Errors: InvalidArgument if max_length is not 3 to 65536: a source has its
  // tag, a piece and the end mark.
  static absl::StatusOr<PairEncoder> Create(TextTokenizers tokenizers,
                                            const TextOptions& options);

  // Errors: InvalidArgument for text that is not UTF-8, or over
  // Tokenizer::kMaxTextBytes; ParsePairLine accepts neither.
  absl::StatusOr<EncodedPair> Encode(const PairLine& line) const;

  const Tokenizer& source() const { return *tokenizers_.source; }
  const Tokenizer& target() const { return *tokenizers_.target; }
  int32_t max_length() const { return max_length_; }

 private:
  PairEncoder(TextTokenizers tokenizers, int32_t max_length);

  TextTokenizers tokenizers_;
  int32_t max_length_;
  absl::flat_hash_map<std::string, int32_t> tags_;  // by language
};

}  // namespace gshard

#endif  // SERVICES_DATA_PAIR_ENCODER_H_
