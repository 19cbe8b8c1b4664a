// TranslateAll: translates sentences together, without a router.

#ifndef TESTS_TESTING_TRANSLATE_ALL_H_
#define TESTS_TESTING_TRANSLATE_ALL_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "services/base/status_macros.h"
#include "services/decoding/running_batch.h"

namespace gshard {

// Result i belongs to sentence i. A sentence for which `cancelled` (may be
// null; called at every step) returns true is abandoned and has no hypotheses.
// Errors: those of Translator::Check, of the segment runner and of
// FinishedSentence.
inline absl::StatusOr<std::vector<std::vector<DecodedHypothesis>>> TranslateAll(
    const Translator& translator, absl::Span<const SourceSentence> sentences,
    const TensorMap& parameters, SegmentRunner* segments = nullptr,
    const std::function<bool(size_t sentence)>& cancelled = nullptr,
    DecodeStatistics* statistics = nullptr) {
  std::vector<JoiningSentence> joining;
  int64_t positions = 0;
  for (size_t i = 0; i < sentences.size(); ++i) {
    RETURN_IF_ERROR(translator.Check(sentences[i]));
    positions += translator.CachedPositions(sentences[i]);
    joining.push_back({.id = i, .sentence = &sentences[i]});
  }
  RunningBatch batch(translator, parameters, positions);
  RETURN_IF_ERROR(batch.Join(joining, segments, statistics));
  std::vector<std::vector<DecodedHypothesis>> results(sentences.size());
  while (batch.sentences() > 0) {
    for (size_t i = 0; cancelled && i < sentences.size(); ++i) {
      if (cancelled(i)) batch.Leave(i);
    }
    RETURN_IF_ERROR(batch.Step(segments, statistics));
    for (FinishedSentence& finished : batch.TakeFinished()) {
      ASSIGN_OR_RETURN(results[finished.id], std::move(finished.hypotheses));
    }
  }
  return results;
}

}  // namespace gshard

#endif  // TESTS_TESTING_TRANSLATE_ALL_H_
