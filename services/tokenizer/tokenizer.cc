#include "services/tokenizer/tokenizer.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/base/check.h"
#include "services/base/status_macros.h"
#include "services/base/utf8.h"
#include "services/storage/input_file.h"
#include "services/tokenizer/isolated_library.h"

namespace gshard {
namespace {

// A sink of the shim: copies the data into the std::string that `context`
// points to.
void Copy(void* context, const void* data, size_t size) {
  if (size == 0) return;
  static_cast<std::string*>(context)->assign(static_cast<const char*>(data),
                                             size);
}

// REQUIRES: LoadSentencePiece has succeeded, as it has if a Tokenizer exists.
const gshard_sp_functions& SentencePiece() {
  static const gshard_sp_functions& functions = **LoadSentencePiece();
  return functions;
}

}  // namespace

std::string LanguageTag(absl::string_view language) {
  return absl::StrCat("<", language, ">");
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(
    const std::string& path) {
  ASSIGN_OR_RETURN(std::string bytes,
                   ReadFile(path, kMaxSentencePieceModelBytes));
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer =
      FromModelBytes(std::move(bytes));
  if (!tokenizer.ok()) return Annotate(tokenizer.status(), path);
  return tokenizer;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromModelBytes(
    std::string bytes) {
  ASSIGN_OR_RETURN(const gshard_sp_functions* const library,
                   LoadSentencePiece());
  std::unique_ptr<Tokenizer> tokenizer(new Tokenizer);
  ASSIGN_OR_RETURN(tokenizer->model_, ParseSentencePieceModel(bytes));
  const std::vector<Piece>& pieces = tokenizer->model_.pieces;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const std::string& text = pieces[i].text;
    tokenizer->ids_.emplace(text, static_cast<int32_t>(i));
    if (pieces[i].type != PieceType::kControl) continue;
    if (text == "<pad>" || text == "<s>" || text == "</s>") continue;
    if (text.size() > 2 && text.front() == '<' && text.back() == '>') {
      tokenizer->languages_.push_back(text.substr(1, text.size() - 2));
    }
  }
  const std::pair<const char*, int32_t*> special[] = {
      {"<pad>", &tokenizer->pad_id_},
      {"<s>", &tokenizer->bos_id_},
      {"</s>", &tokenizer->eos_id_},
      {"<unk>", &tokenizer->unk_id_}};
  for (const auto& [piece, id] : special) {
    const auto found = tokenizer->ids_.find(piece);
    const PieceType expected =
        id == &tokenizer->unk_id_ ? PieceType::kUnknown : PieceType::kControl;
    if (found == tokenizer->ids_.end() ||
        pieces[found->second].type != expected) {
      return absl::InvalidArgumentError(
          absl::StrCat("the SentencePiece model lacks the piece ", piece,
                       "; train it with pad, bos, eos and unk ids"));
    }
    *id = found->second;
  }
  std::string stripped;
  if (tokenizer->model_.has_self_test) stripped = WithoutSelfTest(bytes);
  const std::string& loaded =
      tokenizer->model_.has_self_test ? stripped : bytes;
  std::string message;
  if (library->load(loaded.data(), loaded.size(), &tokenizer->processor_,
                    &message, Copy) != 0) {
    return absl::DataLossError(
        absl::StrCat("SentencePiece refuses the model: ", message));
  }
  tokenizer->bytes_ = std::move(bytes);
  return tokenizer;
}

Tokenizer::~Tokenizer() {
  if (processor_ != nullptr) SentencePiece().unload(processor_);
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(
    absl::string_view text) const {
  if (text.size() > kMaxTextBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "text: expected at most ", kMaxTextBytes, " bytes, got ", text.size()));
  }
  if (const size_t bad = FirstMalformedByte(text); bad != text.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("text: expected UTF-8, byte ", bad, " is not"));
  }
  std::string bytes;  // the ids' bytes, or an error message
  if (SentencePiece().encode(processor_, text.data(), text.size(), &bytes,
                             Copy) != 0) {
    return absl::DataLossError(absl::StrCat("SentencePiece: ", bytes));
  }
  std::vector<int32_t> ids(bytes.size() / sizeof(int32_t));
  if (!ids.empty()) memcpy(ids.data(), bytes.data(), bytes.size());
  return ids;
}

absl::StatusOr<std::string> Tokenizer::Decode(
    absl::Span<const int32_t> ids) const {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size()) {
      return absl::OutOfRangeError(absl::StrCat(
          "ids[", i, "]: expected [0, ", vocab_size(), "), got ", ids[i]));
    }
  }
  std::string text;
  if (SentencePiece().decode(processor_, ids.data(), ids.size(), &text, Copy) !=
      0) {
    return absl::DataLossError(absl::StrCat("SentencePiece: ", text));
  }
  return text;
}

absl::Status Tokenizer::CheckVocabulary(absl::string_view side,
                                        int64_t size) const {
  if (vocab_size() == size) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the ", side, " tokenizer has ", vocab_size(),
                   " pieces, the model expects ", size));
}

const std::string& Tokenizer::IdToPiece(int32_t id) const {
  CHECK(id >= 0 && id < vocab_size());
  return model_.pieces[id].text;
}

absl::StatusOr<int32_t> Tokenizer::LanguageTagId(
    absl::string_view language) const {
  // Not every control piece is a tag: <pad>, <s> and </s> are none.
  if (std::find(languages_.begin(), languages_.end(), language) ==
      languages_.end()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "language: expected one of ", absl::StrJoin(languages_, ", "),
        ", got \"", language, "\""));
  }
  return ids_.at(LanguageTag(language));
}

}  // namespace gshard
