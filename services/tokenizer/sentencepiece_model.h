// Parses and checks a SentencePiece model file before SentencePiece reads it.
//
// SentencePiece trusts its model: a damaged table of normalization rules makes
// it read out of bounds, and some errors terminate the process. A model comes
// with a checkpoint, from disk or from the wire, so it is validated here first.
// The file is one protobuf message, sentencepiece.ModelProto; this reader knows
// the few fields it needs and does not use libprotobuf.

#ifndef SERVICES_TOKENIZER_SENTENCEPIECE_MODEL_H_
#define SERVICES_TOKENIZER_SENTENCEPIECE_MODEL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gshard {

// Values as in the file format.
enum class PieceType : int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,  // never encoded from text
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

struct Piece {
  std::string text;
  float score = 0.0f;
  PieceType type = PieceType::kNormal;
};

struct SentencePieceModel {
  std::vector<Piece> pieces;  // by id
  bool has_self_test = false;
};

inline constexpr uint64_t kMaxSentencePieceModelBytes = uint64_t{256} << 20;

// Errors: DataLoss saying what is wrong.
absl::StatusOr<SentencePieceModel> ParseSentencePieceModel(
    absl::string_view bytes);

// The same model without its self-test: samples of any size and kind, which
// SentencePiece would encode while it loads the model.
// REQUIRES: ParseSentencePieceModel accepts `bytes`.
std::string WithoutSelfTest(absl::string_view bytes);

}  // namespace gshard

#endif  // SERVICES_TOKENIZER_SENTENCEPIECE_MODEL_H_
