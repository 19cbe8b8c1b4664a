// The SentencePiece model file, read and checked before SentencePiece sees it.
//
// SentencePiece trusts its model: a damaged table of normalization rules makes
// it read outside its memory, and some errors end the process. A model arrives
// with a checkpoint, from disk or from the wire, so it is walked here first.
// The file is one protobuf message, sentencepiece.ModelProto; this reader knows
// the few fields it needs and has no need of libprotobuf.

#ifndef SERVICES_TOKENIZER_SENTENCEPIECE_MODEL_H_
#define SERVICES_TOKENIZER_SENTENCEPIECE_MODEL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gshard {

// The values are those of the file format.
enum class PieceType : int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,  // never comes out of text
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
};

// Errors: DataLoss saying what is wrong with the bytes.
absl::StatusOr<SentencePieceModel> ParseSentencePieceModel(
    absl::string_view bytes);

}  // namespace gshard

#endif  // SERVICES_TOKENIZER_SENTENCEPIECE_MODEL_H_
