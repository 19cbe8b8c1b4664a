// Converts and validates a request's search options.

#ifndef ROUTER_MODELS_DECODE_REQUEST_H_
#define ROUTER_MODELS_DECODE_REQUEST_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/gshard/v1/translation.pb.h"
#include "router/models/terminology.h"
#include "router/models/translation_model.h"

namespace gshard {

inline constexpr int kMaxBeamSize = 32;
inline constexpr double kMaxLengthPenalty = 4.0;
inline constexpr int kMaxTopK = 64;  // also the most candidates of a beam
inline constexpr double kMinTemperature = 0.01, kMaxTemperature = 10.0;

// Options common to all sentences. max_length is only checked, see MaxLength().
// Where translations are to be drawn without a seed, it is another one each
// time.
// Errors: InvalidArgument naming the field, "options.beam_size: ...".
absl::StatusOr<DecodeOptions> CheckOptions(const v1::TranslateOptions& options,
                                           int64_t max_positions);

// DecodeOptions::max_length of a sentence with this many source tokens.
int MaxLength(const v1::TranslateOptions& options, int64_t source_tokens,
              const TranslationModel& model);

// The terms of a request, and what their targets are for its model.
struct RequestTerms {
  explicit RequestTerms(const v1::TranslateOptions& options)
      : finder(options), tokens(options.terms_size()) {}

  TermFinder finder;
  // By term; empty until the first sentence to which it applies.
  std::vector<std::vector<int32_t>> tokens;
};

// Adds options that depend on the sentence: maximum length, prefix, phrases.
// REQUIRES: sentence.options are from CheckOptions(options), `terms` is built
// from `options`, and sentence.ids are set. Errors: InvalidArgument naming the
// field, "target_prefix: ..." or "options.terms[2].target: ...".
absl::Status AddSentenceOptions(const v1::Sentence& request,
                                const v1::TranslateOptions& options,
                                const TranslationModel& model,
                                RequestTerms& terms, SourceSentence& sentence);

// "field: expected low to high, got ...".
absl::Status OutOfRange(absl::string_view field, int64_t low, int64_t high,
                        int64_t got);

}  // namespace gshard

#endif  // ROUTER_MODELS_DECODE_REQUEST_H_
