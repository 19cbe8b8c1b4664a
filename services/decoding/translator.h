// Translator: a model for translation: its programs, its special tokens and
// limits that follow from its sizes. RunningBatch does the work.
//
// A sentence's result has the same bits alone and in any batch, as long as the
// gate is dropless and always keeps the second expert (evaluation_policy ALL):
// every operator computes rows independently. The other policies draw by the
// index of a row.

#ifndef SERVICES_DECODING_TRANSLATOR_H_
#define SERVICES_DECODING_TRANSLATOR_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "services/config/model_config.h"
#include "services/decoding/beam_search.h"
#include "services/graph/device_executor.h"

namespace gshard {

struct SourceSentence {
  std::vector<int32_t> ids;  // tag, pieces, end of sentence; not empty
  DecodeOptions options;
};

struct TargetTokens {
  int32_t bos = 0;
  int32_t eos = 0;
  std::vector<int32_t> never;  // never produced: padding, tags, ...
  int32_t unk = -1;            // the unknown token, if there is one
};

// Thread-safe.
class Translator {
 public:
  // `encode` and `decode` are from BuildEncodeProgram and BuildDecodeProgram
  // for `config`, or the router's side of them. They run on `device`, which
  // outlives the translator, or on the CPU if null; parameters should be there,
  // too.
  Translator(const ModelConfig& config, Program encode, Program decode,
             TargetTokens tokens, Device* device = nullptr);

  // Unimplemented, with the operator's name, if the device lacks a kernel.
  absl::Status status() const;

  // The keys and values of sources, the cache and the logits stay on the
  // device.
  const DeviceExecutor& encode() const { return encode_; }
  const DeviceExecutor& decode() const { return decode_; }
  const TargetTokens& tokens() const { return tokens_; }
  // Tokens that a sentence never produces.
  const std::vector<int32_t>& never(bool allow_unknown) const {
    return allow_unknown ? tokens_.never : never_or_unknown_;
  }

  // Errors: InvalidArgument for an empty sentence, one longer than the model's
  // positions, an id outside the vocabulary, or invalid options: see
  // DecodeOptions.
  absl::Status Check(const SourceSentence& sentence) const;

  // Maximum number of tokens of the translation.
  int MaxLength(const SourceSentence& sentence) const;

  // Cache positions that the sentence may need, in whole pages: those of the
  // source, and of each hypothesis at its longest.
  int64_t CachedPositions(const SourceSentence& sentence) const;

  // Starts the search for a translation. What is drawn depends on the source,
  // too: with one seed, sentences would have a choice in common otherwise.
  BeamSearch Search(const SourceSentence& sentence) const;

  // The form of each parameter that suits both programs; others are converted
  // at each step.
  WeightForms weight_forms() const;

 private:
  absl::Status CheckOptions(const SourceSentence& sentence) const;

  const ModelConfig config_;
  const DeviceExecutor encode_;
  const DeviceExecutor decode_;
  const TargetTokens tokens_;
  std::vector<int32_t> never_or_unknown_;
};

}  // namespace gshard

#endif  // SERVICES_DECODING_TRANSLATOR_H_
