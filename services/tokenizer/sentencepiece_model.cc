#include "services/tokenizer/sentencepiece_model.h"

#include <string.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/base/utf8.h"

namespace gshard {
namespace {

constexpr int64_t kMaxPieces = 1 << 20;

absl::Status Damaged(absl::string_view what) {
  return absl::DataLossError(
      absl::StrCat("not an intact SentencePiece model: ", what));
}

// One field of a protobuf message: a number, or bytes.
struct Field {
  uint32_t number = 0;
  uint32_t wire_type = 0;
  uint64_t value = 0;       // wire types 0 (varint), 1 and 5 (fixed)
  absl::string_view bytes;  // wire type 2
};

// Reads the fields of a protobuf message; Next() returns false at its end or at
// a damaged field, which ok() distinguishes.
class MessageReader {
 public:
  explicit MessageReader(absl::string_view message) : rest_(message) {}

  bool Next(Field* field) {
    if (rest_.empty() || !ok_) return false;
    uint64_t tag = 0;
    ok_ = Varint(&tag);
    *field = {
        static_cast<uint32_t>(tag >> 3), static_cast<uint32_t>(tag & 7), 0, {}};
    ok_ = ok_ && tag >> 3 != 0 && tag >> 32 == 0 && Value(field);
    return ok_;
  }

  bool ok() const { return ok_; }

  // What Next() has not read yet.
  absl::string_view rest() const { return rest_; }

 private:
  bool Varint(uint64_t* value) {
    *value = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(rest_[0]);
      rest_.remove_prefix(1);
      *value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }

  bool Fixed(size_t size, uint64_t* value) {
    if (rest_.size() < size) return false;
    memcpy(value, rest_.data(), size);  // little-endian, as the machine
    rest_.remove_prefix(size);
    return true;
  }

  bool Value(Field* field) {
    switch (field->wire_type) {
      case 0:
        return Varint(&field->value);
      case 1:
        return Fixed(8, &field->value);
      case 2: {
        uint64_t size = 0;
        if (!Varint(&size) || size > rest_.size()) return false;
        field->bytes = rest_.substr(0, size);
        rest_.remove_prefix(size);
        return true;
      }
      case 5:
        return Fixed(4, &field->value);
      default:
        return false;
    }
  }

  absl::string_view rest_;
  bool ok_ = true;
};

// message SentencePiece { string piece = 1; float score = 2; Type type = 3; }
absl::StatusOr<Piece> ParsePiece(absl::string_view message) {
  Piece piece;
  MessageReader reader(message);
  Field field;
  while (reader.Next(&field)) {
    if (field.number == 1 && field.wire_type == 2) {
      piece.text = std::string(field.bytes);
    } else if (field.number == 2 && field.wire_type == 5) {
      const auto bits = static_cast<uint32_t>(field.value);
      memcpy(&piece.score, &bits, sizeof piece.score);
    } else if (field.number == 3 && field.wire_type == 0) {
      if (field.value < 1 || field.value > 6) {
        return Damaged("a piece has an unknown type");
      }
      piece.type = static_cast<PieceType>(field.value);
    }
  }
  if (!reader.ok()) return Damaged("a piece is cut off");
  if (piece.text.empty() || !IsUtf8(piece.text) ||
      piece.text.find('\0') != std::string::npos) {
    return Damaged("a piece has no text");
  }
  // NaN and infinity would break the search for the best pieces.
  if (!(piece.score > -1e30f && piece.score < 1e30f)) {
    return Damaged("a piece has no finite score");
  }
  return piece;
}

// A unit of the trie of normalization rules, a double array in darts-clone's
// format. It is a value (where a replacement starts) or a node: the nodes below
// a base are at base ^ byte and have that byte as label; node i has its own
// base at i ^ Offset(), and its value there if it HasValue().
bool IsValue(uint32_t unit) { return unit >> 31 != 0; }
bool HasValue(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t Label(uint32_t unit) { return unit & 0xFF; }
uint32_t Offset(uint32_t unit) { return (unit >> 10) << ((unit & 0x200) >> 6); }

// SentencePiece has room for this many rules that match at one position, and
// writes no table with more.
constexpr int kMaxMatchingRules = 32;

// Follows every path from the root, in time linear in the units. A cycle is a
// path without an end.
absl::Status CheckTriePaths(const std::vector<uint32_t>& units) {
  constexpr uint32_t kNone = 0xFFFFFFFF;
  // The nodes below each base as a list; `first` loses those followed.
  std::vector<uint32_t> first(units.size(), kNone), next(units.size(), kNone);
  for (uint32_t i = 0; i < units.size(); ++i) {
    if (IsValue(units[i])) continue;
    const uint32_t base = i ^ Label(units[i]);
    next[i] = first[base];
    first[base] = i;
  }
  enum : uint8_t { kNew, kOnPath, kDone };
  std::vector<uint8_t> state(units.size(), kNew);
  std::vector<uint8_t> values(units.size(), 0);  // most on a path from a base
  std::vector<uint32_t> path = {Offset(units[0])};
  state[path[0]] = kOnPath;
  while (!path.empty()) {
    const uint32_t base = path.back();
    const uint32_t node = first[base];
    if (node == kNone) {
      state[base] = kDone;
      path.pop_back();
      continue;
    }
    const uint32_t below = node ^ Offset(units[node]);
    if (state[below] == kOnPath) return Damaged("its rules have a cycle");
    if (state[below] == kNew) {
      state[below] = kOnPath;
      path.push_back(below);
      continue;
    }
    first[base] = next[node];
    const int count = values[below] + (HasValue(units[node]) ? 1 : 0);
    if (count > kMaxMatchingRules) {
      return Damaged(absl::StrCat("over ", kMaxMatchingRules,
                                  " of its rules match at one position"));
    }
    values[base] = std::max(values[base], static_cast<uint8_t>(count));
  }
  return absl::OkStatus();
}

// The table of normalization rules: the size of a trie, the trie and the
// replacement texts, each zero-terminated. SentencePiece follows the trie
// without checking bounds, and takes a unit for what its position makes it.
absl::Status CheckRules(absl::string_view rules) {
  if (rules.empty()) return absl::OkStatus();
  uint32_t trie_bytes = 0;
  if (rules.size() < sizeof trie_bytes) return Damaged("rules are cut off");
  memcpy(&trie_bytes, rules.data(), sizeof trie_bytes);
  rules.remove_prefix(sizeof trie_bytes);
  // Nodes below a base lie in its block of 256 units, all of which are there.
  if (trie_bytes > rules.size() || trie_bytes == 0 || trie_bytes % 1024 != 0) {
    return Damaged("the trie of its rules has a wrong size");
  }
  const absl::string_view texts = rules.substr(trie_bytes);
  if (texts.empty() || texts.back() != '\0') {
    return Damaged("the texts of its rules have no end");
  }
  if (!IsUtf8(texts)) return Damaged("the texts of its rules are not UTF-8");
  std::vector<uint32_t> units(trie_bytes / 4);
  memcpy(units.data(), rules.data(), trie_bytes);
  // The root's label is never compared, so its offset is always followed.
  if (IsValue(units[0])) return Damaged("the trie of its rules has no root");
  for (uint32_t i = 0; i < units.size(); ++i) {
    if (IsValue(units[i])) {
      if ((units[i] & 0x7FFFFFFF) >= texts.size()) {
        return Damaged("a rule points outside the texts");
      }
      continue;
    }
    const uint32_t base = i ^ Offset(units[i]);
    if ((base | 0xFF) >= units.size()) {
      return Damaged("a rule points outside the trie");
    }
    if (HasValue(units[i]) && !IsValue(units[base])) {
      return Damaged("a rule has no text");
    }
  }
  return CheckTriePaths(units);
}

// message NormalizerSpec { bytes precompiled_charsmap = 2; ... }
absl::Status CheckNormalizer(absl::string_view message) {
  MessageReader reader(message);
  Field field;
  while (reader.Next(&field)) {
    if (field.number == 2 && field.wire_type == 2) {
      RETURN_IF_ERROR(CheckRules(field.bytes));
    }
  }
  return reader.ok() ? absl::OkStatus() : Damaged("its rules are cut off");
}

// At a position of a text, SentencePiece has room for this many user-defined
// pieces, each of which begins with the one before.
constexpr size_t kMaxMatchingPieces = 64;

absl::Status CheckUserDefined(const std::vector<Piece>& pieces) {
  std::vector<absl::string_view> texts;
  for (const Piece& piece : pieces) {
    if (piece.type == PieceType::kUserDefined) texts.push_back(piece.text);
  }
  std::sort(texts.begin(), texts.end());
  std::vector<absl::string_view> prefixes;  // of the text, and itself
  for (const absl::string_view text : texts) {
    while (!prefixes.empty() && !absl::StartsWith(text, prefixes.back())) {
      prefixes.pop_back();
    }
    prefixes.push_back(text);
    if (prefixes.size() > kMaxMatchingPieces) {
      return Damaged(absl::StrCat("over ", kMaxMatchingPieces,
                                  " user-defined pieces match at one "
                                  "position"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

// message ModelProto {
//   repeated SentencePiece pieces = 1;  TrainerSpec trainer_spec = 2;
//   NormalizerSpec normalizer_spec = 3;  SelfTestData self_test_data = 4;
//   NormalizerSpec denormalizer_spec = 5; }
absl::StatusOr<SentencePieceModel> ParseSentencePieceModel(
    absl::string_view bytes) {
  if (bytes.size() > kMaxSentencePieceModelBytes)
    return Damaged("over 256 MiB");
  SentencePieceModel model;
  MessageReader reader(bytes);
  Field field;
  while (reader.Next(&field)) {
    if (field.number > 5 || field.wire_type != 2) {
      return Damaged(absl::StrCat("unexpected field ", field.number));
    }
    if (field.number == 1) {
      ASSIGN_OR_RETURN(Piece piece, ParsePiece(field.bytes));
      model.pieces.push_back(std::move(piece));
    } else if (field.number == 4) {
      model.has_self_test = true;
    } else if (field.number == 3 || field.number == 5) {
      RETURN_IF_ERROR(CheckNormalizer(field.bytes));
    }
  }
  if (!reader.ok()) return Damaged("cut off or altered");
  if (model.pieces.empty()) return Damaged("it has no pieces");
  if (static_cast<int64_t>(model.pieces.size()) > kMaxPieces) {
    return Damaged("over a million pieces");
  }
  absl::flat_hash_set<absl::string_view> seen;
  for (const Piece& piece : model.pieces) {
    if (!seen.insert(piece.text).second) {
      return Damaged(absl::StrCat("two pieces are \"", piece.text, "\""));
    }
  }
  RETURN_IF_ERROR(CheckUserDefined(model.pieces));
  return model;
}

std::string WithoutSelfTest(absl::string_view bytes) {
  std::string kept;
  kept.reserve(bytes.size());
  MessageReader reader(bytes);
  Field field;
  absl::string_view start = reader.rest();
  while (reader.Next(&field)) {
    const absl::string_view rest = reader.rest();
    if (field.number != 4) {
      kept.append(start.data(), start.size() - rest.size());
    }
    start = rest;
  }
  return kept;
}

}  // namespace gshard
