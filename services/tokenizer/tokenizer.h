// Tokenizer: text to piece ids and back, with SentencePiece.
//
// The ids are those that `spm_encode --output_format=id` prints for the same
// model. Special pieces are never produced by Encode, whatever the text:
// padding, end of sentence, beginning of sentence and the language tags
// ("<de>"), which callers prepend to a source by id. The unknown piece stands
// for text that the vocabulary cannot encode.
//
// Models from TrainTokenizer (trainer.h) have pad 0, eos 1, unk 2, bos 3.
//
// Thread-safe for const methods.

#ifndef SERVICES_TOKENIZER_TOKENIZER_H_
#define SERVICES_TOKENIZER_TOKENIZER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "services/tokenizer/sentencepiece_model.h"

namespace gshard {

// The piece that marks the language of a source: "<pt_BR>".
std::string LanguageTag(absl::string_view language);

class Tokenizer {
 public:
  // Encode refuses longer texts, which bounds SentencePiece's memory and time.
  static constexpr size_t kMaxTextBytes = 1 << 20;

  // Reads a SentencePiece model file.
  //
  // Errors: NotFound if it cannot be opened; those of FromModelBytes.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(
      const std::string& path);

  // From the bytes of a model file, e.g. in a checkpoint.
  //
  // Errors: DataLoss if the bytes are not an intact SentencePiece model,
  // InvalidArgument for a model without <pad>, <s>, </s> or <unk>,
  // FailedPrecondition if SentencePiece cannot be loaded on this machine.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromModelBytes(
      std::string bytes);

  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;
  ~Tokenizer();

  // Ids of the pieces of `text`; no special piece is added. Empty text gives
  // no ids.
  //
  // Errors: InvalidArgument if `text` is not UTF-8 or over kMaxTextBytes;
  // DataLoss, here and in Decode(), if the model proves to be unsound, e.g. if
  // it makes a letter a control piece.
  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text) const;

  // The text of `ids`. Special pieces are omitted, the unknown piece becomes "
  // \u2047 ".
  //
  // Errors: OutOfRange naming the first id outside [0, vocab_size).
  absl::StatusOr<std::string> Decode(absl::Span<const int32_t> ids) const;

  int32_t vocab_size() const {
    return static_cast<int32_t>(model_.pieces.size());
  }
  // Errors: FailedPrecondition unless vocab_size() is the `size` that a model
  // has on that side, "source" or "target".
  absl::Status CheckVocabulary(absl::string_view side, int64_t size) const;

  int32_t pad_id() const { return pad_id_; }
  int32_t bos_id() const { return bos_id_; }
  int32_t eos_id() const { return eos_id_; }
  int32_t unk_id() const { return unk_id_; }

  // REQUIRES: 0 <= id < vocab_size().
  const std::string& IdToPiece(int32_t id) const;

  // The id of LanguageTag(language).
  //
  // Errors: InvalidArgument naming the available languages.
  absl::StatusOr<int32_t> LanguageTagId(absl::string_view language) const;

  // Languages that have a tag, in the order of their ids.
  const std::vector<std::string>& languages() const { return languages_; }

  // The bytes of the model file, which checkpoints contain.
  const std::string& model_bytes() const { return bytes_; }

 private:
  Tokenizer() = default;

  std::string bytes_;
  SentencePieceModel model_;
  absl::flat_hash_map<std::string, int32_t> ids_;
  std::vector<std::string> languages_;
  int32_t pad_id_ = -1;
  int32_t bos_id_ = -1;
  int32_t eos_id_ = -1;
  int32_t unk_id_ = -1;
  void* processor_ = nullptr;  // owned by the shim; see isolated_library.h
};

}  // namespace gshard

#endif  // SERVICES_TOKENIZER_TOKENIZER_H_
