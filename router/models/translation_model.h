// TranslationModel: the interface of a served model for the front end and the
// batcher. ServingSession implements it.

#ifndef ROUTER_MODELS_TRANSLATION_MODEL_H_
#define ROUTER_MODELS_TRANSLATION_MODEL_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "router/models/cancellation.h"
#include "services/config/model_request.h"
#include "services/decoding/routing_trace.h"
#include "services/decoding/running_batch.h"

namespace gshard {

using Hypotheses = std::vector<DecodedHypothesis>;  // hypotheses of a sentence

// Context of the sentences that a batch is translating.
struct BatchRun {
  // The latest deadline of the sentences.
  std::chrono::steady_clock::time_point deadline;

  // Set when nobody waits for any of them any more: the call then returns soon.
  Cancellation* all_cancelled = nullptr;
};

// Sentences of one model that are decoded together: RunningBatch with its
// experts. Used by one thread at a time; does not outlive its model.
class ModelBatch {
 public:
  virtual ~ModelBatch() = default;

  // As RunningBatch::Join and Step; they block. Errors: Unavailable if the
  // model cannot be run any more or an expert worker is lost; DeadlineExceeded;
  // Cancelled. After an error of Join the batch is unchanged; after an error of
  // Step it is unusable.
  virtual absl::Status Join(absl::Span<const JoiningSentence> joining,
                            const BatchRun& run) = 0;
  virtual absl::Status Step(const BatchRun& run) = 0;

  virtual void Leave(uint64_t id) = 0;
  virtual std::vector<FinishedSentence> TakeFinished() = 0;
  virtual int64_t rows() const = 0;  // rows of the next step
};

// Routing of a sentence, with names.
struct RoutingReport {
  RoutingTrace trace;
  std::vector<std::string> source, target;      // pieces of the tokens
  std::vector<std::vector<std::string>> hosts;  // hosts per expert
};

// Thread-safe.
class TranslationModel {
 public:
  virtual ~TranslationModel() = default;

  // "name@version".
  virtual const std::string& id() const = 0;
  std::string name() const { return ModelNameOf(id()); }

  // Longest source and longest translation in tokens.
  virtual int64_t max_positions() const = 0;

  // The languages of sources.
  virtual const std::vector<std::string>& languages() const = 0;

  // The language of requests without one; empty if they must have one.
  virtual const std::string& default_language() const = 0;

  // Tag, pieces, end of sentence. Errors: InvalidArgument, beginning with
  // "source_language: " or "text: ".
  virtual absl::StatusOr<std::vector<int32_t>> Encode(
      absl::string_view text, absl::string_view language) const = 0;

  // Pieces of a text in the target's language. Errors: InvalidArgument if the
  // vocabulary cannot encode it, or it has no pieces.
  virtual absl::StatusOr<std::vector<int32_t>> EncodeTarget(
      absl::string_view text) const = 0;

  // The same of text that translations have to contain. Errors: also
  // InvalidArgument if it would come out as another text, e.g. with "..." for
  // an ellipsis.
  virtual absl::StatusOr<std::vector<int32_t>> EncodePhrase(
      absl::string_view text) const {
    return EncodeTarget(text);
  }

  // Number of unknown tokens among a source's ids.
  virtual int32_t CountUnknown(absl::Span<const int32_t> ids) const = 0;

  // The text of a translation. Errors: those of Tokenizer::Decode.
  virtual absl::StatusOr<std::string> Decode(
      absl::Span<const int32_t> ids) const = 0;

  // Whether every expert is known to have a worker. If not, translations are
  // degraded.
  virtual bool full() const { return true; }

  // Cache positions that a sentence may need in a batch.
  virtual int64_t CachedPositions(const SourceSentence& sentence) const = 0;

  // An empty batch, whose cache has at most `max_positions` positions.
  virtual std::unique_ptr<ModelBatch> NewBatch(int64_t max_positions) = 0;

  // Runs a source from Encode(), and pieces of a translation, through the
  // model; blocks. Errors: those of ModelBatch; Unimplemented.
  virtual absl::StatusOr<RoutingReport> ExplainRouting(
      const std::vector<int32_t>& source, const std::vector<int32_t>& target,
      const BatchRun& run) {
    (void)source, (void)target, (void)run;
    return absl::UnimplementedError("the model does not explain its routing");
  }
};

}  // namespace gshard

#endif  // ROUTER_MODELS_TRANSLATION_MODEL_H_
