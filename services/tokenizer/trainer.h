// Trains a SentencePiece vocabulary with the program `spm_train` (Debian
// package "sentencepiece") in a separate process.
//
// Same sentences and options give the same model, byte for byte.

#ifndef SERVICES_TOKENIZER_TRAINER_H_
#define SERVICES_TOKENIZER_TRAINER_H_

#include <cstddef>
#include <cstdint>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace gshard {

inline constexpr int32_t kMinVocabSize = 64;
inline constexpr int32_t kMaxVocabSize = 256000;
// spm_train skips longer sentences.
inline constexpr size_t kMaxSentenceBytes = 4192;

struct TokenizerOptions {
  enum class ModelType { kUnigram, kBpe };

  ModelType model_type = ModelType::kUnigram;
  // Number of pieces, including special ones and tags; kMinVocabSize to
  // kMaxVocabSize.
  int32_t vocab_size = 4000;
  // Each gets a tag (LanguageTag), in this order, from id 4 on. At most
  // kMaxLanguages.
  std::vector<std::string> languages;
  uint32_t seed = 1;
};

// Trains on `sentences` and writes the model to `path` (replaced only if
// training succeeds). Sentences of over kMaxSentenceBytes are skipped. They are
// on the disk beside `path`, and no longer in memory, when spm_train runs.
//
// Errors: InvalidArgument for an option out of range, text that is not UTF-8,
// no text, or too little text for the vocabulary; FailedPrecondition if
// spm_train is not installed; Cancelled if stop is requested, which kills
// spm_train; Internal with its last output if it fails otherwise; those of
// services/storage/file.h, such as ResourceExhausted, naming the folder, if the
// disk is full.
absl::Status TrainTokenizer(const TokenizerOptions& options,
                            std::vector<std::string> sentences,
                            const std::string& path, std::stop_token stop = {});

}  // namespace gshard

#endif  // SERVICES_TOKENIZER_TRAINER_H_
