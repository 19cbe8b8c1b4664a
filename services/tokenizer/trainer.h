// Trains a SentencePiece vocabulary, by the program `spm_train` (Debian package
// "sentencepiece") in a process of its own.
//
// Same sentences and options give the same model, byte for byte.

#ifndef SERVICES_TOKENIZER_TRAINER_H_
#define SERVICES_TOKENIZER_TRAINER_H_

#include <cstdint>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace gshard {

struct TokenizerOptions {
  enum class ModelType { kUnigram, kBpe };

  ModelType model_type = ModelType::kUnigram;
  // Pieces, special ones and tags included; [64, 256000].
  int32_t vocab_size = 4000;
  // Each gets a tag (LanguageTag), in this order, from id 4 on.
  std::vector<std::string> languages;
  // Pieces that are always kept whole when text holds them.
  std::vector<std::string> user_defined_symbols;
  // Share of the characters that get pieces of their own; (0, 1].
  double character_coverage = 0.9995;
  // With fewer distinct pieces in the text than asked for, make a smaller
  // vocabulary; otherwise that is an error. Unigram only.
  bool allow_smaller = true;
  // Sentences beyond this many are left out, chosen by `seed`; 0 for no limit.
  int64_t max_sentences = 0;
  uint32_t seed = 1;
};

// Trains on `sentences` and writes the model to `path` (replaced only when
// training succeeded). Sentences of over 4192 bytes are left out.
//
// Errors: InvalidArgument for an option out of range, text that is not UTF-8,
// no text, or a vocabulary that the text cannot fill; FailedPrecondition if
// spm_train is not installed; Cancelled if it is told to stop, which kills
// spm_train; Internal with its last words if it fails otherwise; those of
// writing `path`.
absl::Status TrainTokenizer(const TokenizerOptions& options,
                            const std::vector<std::string>& sentences,
                            const std::string& path, std::stop_token stop = {});

}  // namespace gshard

#endif  // SERVICES_TOKENIZER_TRAINER_H_
