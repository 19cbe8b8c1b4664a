// Translator: encoder, beam search and decoder for a batch of sentences.
//
// A sentence's result has the same bits alone and in any batch, as long as the
// gate is dropless: every operator treats rows alike whatever is beside them.
//
// Letters: B sentences, K hypotheses of a sentence, P positions of a cache,
// V target vocabulary.

#ifndef SERVICES_DECODING_TRANSLATOR_H_
#define SERVICES_DECODING_TRANSLATOR_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "services/config/model_config.h"
#include "services/decoding/beam_search.h"
#include "services/graph/executor.h"

namespace gshard {

struct SourceSentence {
  std::vector<int32_t> ids;  // tag, pieces, end of sentence; not empty
  DecodeOptions options;
};

// What one MoE layer did.
struct LayerLoad {
  std::string layer;
  std::vector<int64_t> expert_rows;  // [E]
  int64_t overflow_first = 0;
  int64_t overflow_second = 0;
};

struct DecodeStatistics {
  std::vector<LayerLoad> layers;  // in the order of execution
  int64_t decoded_tokens = 0;     // of all hypotheses
  int64_t steps = 0;              // of the decoder
};

struct TargetTokens {
  int32_t bos = 0;
  int32_t eos = 0;
  std::vector<int32_t> never;  // never produced: padding, tags, ...
};

// Thread-safe.
class Translator {
 public:
  // `encode` and `decode` are BuildEncodeProgram's and BuildDecodeProgram's
  // for `config`, or the router's side of them.
  Translator(const ModelConfig& config, Program encode, Program decode,
             TargetTokens tokens);

  // Translates all sentences together; result i belongs to sentence i. A
  // sentence for which `cancelled` (may be null; asked at every step) returns
  // true is given up and has no hypotheses. `statistics` may be null.
  //
  // Errors: InvalidArgument for an empty sentence, one longer than the model's
  // positions, or an id outside the vocabulary; those of the segments' runner.
  absl::StatusOr<std::vector<std::vector<DecodedHypothesis>>> Translate(
      absl::Span<const SourceSentence> sentences, const TensorMap& parameters,
      SegmentRunner* segments,
      const std::function<bool(size_t sentence)>& cancelled,
      DecodeStatistics* statistics) const;

  // Rounds those parameters that the programs take as bfloat16, which Translate
  // would do at each step.
  void RoundParameters(TensorMap& parameters) const;

 private:
  const ModelConfig config_;
  const Executor encode_;
  const Executor decode_;
  const TargetTokens tokens_;
};

}  // namespace gshard

#endif  // SERVICES_DECODING_TRANSLATOR_H_
