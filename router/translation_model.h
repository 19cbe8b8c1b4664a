// TranslationModel: a served model as the front end and the batcher see it.
// ServingSession is the real one.

#ifndef ROUTER_TRANSLATION_MODEL_H_
#define ROUTER_TRANSLATION_MODEL_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "router/cancellation.h"
#include "services/decoding/translator.h"

namespace gshard {

// What is known of the batch that is being translated.
struct BatchRun {
  // Nobody waits for any sentence after this.
  std::chrono::steady_clock::time_point deadline;

  // Whether nobody waits for a sentence any more; and all of them.
  std::function<bool(size_t sentence)> cancelled;
  Cancellation* all_cancelled = nullptr;
};

using Hypotheses = std::vector<DecodedHypothesis>;  // of one sentence

// Thread-safe.
class TranslationModel {
 public:
  virtual ~TranslationModel() = default;

  // "name@version".
  virtual const std::string& id() const = 0;

  // Longest source and longest translation in tokens.
  virtual int64_t max_positions() const = 0;

  // The language of a request that names none; empty if it must.
  virtual const std::string& default_language() const = 0;

  // Tag, pieces, end of sentence. Errors: InvalidArgument, beginning with
  // "source_language: " or "text: ".
  virtual absl::StatusOr<std::vector<int32_t>> Encode(
      absl::string_view text, absl::string_view language) const = 0;

  // The text of a translation. Errors: those of Tokenizer::Decode.
  virtual absl::StatusOr<std::string> Decode(
      absl::Span<const int32_t> ids) const = 0;

  // Translates a batch; blocks. Sentences that are cancelled have no
  // hypotheses. Errors: Unavailable if the model cannot be run any more or an
  // expert worker is lost; DeadlineExceeded; Cancelled.
  virtual absl::StatusOr<std::vector<Hypotheses>> Translate(
      absl::Span<const SourceSentence> sentences, const BatchRun& run) = 0;
};

}  // namespace gshard

#endif  // ROUTER_TRANSLATION_MODEL_H_
