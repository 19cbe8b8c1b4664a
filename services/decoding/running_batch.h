// RunningBatch: sentences that are decoded together and can join and leave
// between any two positions.
//
//   RunningBatch batch(translator, parameters, limits);
//   RETURN_IF_ERROR(batch.Join({{.id = 7, .sentence = &sentence}}, run));
//   while (batch.sentences() > 0) {
//     RETURN_IF_ERROR(batch.Step(run));
//     for (FinishedSentence& finished : batch.TakeFinished()) ...
//   }
//
// Each hypothesis is a row at its own position: sentences of any length, age
// and beam share a step, whose cost depends on the number of hypotheses. A
// sentence's result has the same bits as alone, whoever joins and leaves, under
// the conditions in translator.h.

#ifndef SERVICES_DECODING_RUNNING_BATCH_H_
#define SERVICES_DECODING_RUNNING_BATCH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "services/decoding/beam_search.h"
#include "services/decoding/choice_count.h"
#include "services/decoding/decode_statistics.h"
#include "services/decoding/decoder_cache.h"
#include "services/decoding/translator.h"
#include "services/segments/segment_runner.h"

namespace gshard {

struct JoiningSentence {
  uint64_t id = 0;  // chosen by the caller, unique in a batch
  const SourceSentence* sentence = nullptr;
};

struct FinishedSentence {
  uint64_t id = 0;
  // Best first. Errors: Internal if its logits were not numbers.
  absl::StatusOr<std::vector<DecodedHypothesis>> hypotheses;
  int64_t steps = 0;  // steps that it took part in; 0: given up, or an error
  // Cost of its rows relative to the mean row in their steps: a row costs in
  // proportion to its expert's load. 1 if the experts are unknown.
  double row_cost = 1;
};

// Not thread-safe.
class RunningBatch {
 public:
  // `translator` and `parameters` are not owned. The cache holds at most
  // `max_positions` positions, rounded down to whole pages; see CachedPositions
  // in translator.h.
  RunningBatch(const Translator& translator, const TensorMap& parameters,
               int64_t max_positions);

  // Encodes sentences together and adds them. After an error, of one of them or
  // of the segment runner, none has joined and the other sentences are
  // unaffected. `statistics` may be null, here and below.
  //
  // Errors: InvalidArgument for a sentence that Translator::Check refuses or an
  // id in use; ResourceExhausted if the cache has no room for them; those of
  // the segment runner and of the translator's device.
  absl::Status Join(absl::Span<const JoiningSentence> joining,
                    SegmentRunner* segments, DecodeStatistics* statistics);

  // Removes a sentence, if present. Its part of the cache is free at once.
  void Leave(uint64_t id);

  // Decodes one position of every sentence. A sentence that requires all
  // experts ends when some of its choices were lost, with one hypothesis that
  // has the lost share but no tokens; one whose logits are not numbers ends
  // with an error of its own. After an error, of the segment runner or the
  // device, the batch is unusable. Does nothing without sentences.
  absl::Status Step(SegmentRunner* segments, DecodeStatistics* statistics);

  // Sentences finished since the last call, which have left the batch.
  std::vector<FinishedSentence> TakeFinished();

  int64_t sentences() const { return static_cast<int64_t>(active_.size()); }
  // Number of hypotheses in the next step.
  int64_t rows() const;
  // Cache positions that sentences have reserved, or use.
  int64_t reserved_positions() const { return reserved_ * kPagePositions; }
  int64_t used_positions() { return cache_.pages().in_use() * kPagePositions; }

 private:
  struct Active {
    uint64_t id;
    int64_t reserved;  // pages
    int64_t source_length;
    PageTable source;
    BeamSearch search;
    bool allow_unknown;
    std::vector<PageTable> pages;  // one per live hypothesis
    int64_t position = 0;          // position of the next step
    ChoiceCount choices;
    bool require_full = false;
  };

  absl::StatusOr<TensorMap> Encode(absl::Span<const JoiningSentence> joining,
                                   SegmentRunner* segments,
                                   DecodeStatistics* statistics,
                                   std::vector<ChoiceCount>* choices);
  // Makes the page at each sentence's position writable for each hypothesis.
  absl::Status MakeRoom();
  TensorMap DecoderInputs();
  // Of each row, which are of sentences in order. Waits for `run`, null on the
  // host, in which the logits were computed.
  absl::StatusOr<std::vector<std::vector<TokenScore>>> Candidates(
      DeviceRun* run, const Tensor& logits) const;
  void Advance(absl::Span<const std::vector<TokenScore>> candidates);
  static void FollowParents(Active& active, PagePool& pages);
  void Release(Active& active);
  // Ends a sentence that requires all experts.
  void GiveUp(Active& active);

  const Translator& translator_;
  const TensorMap& parameters_;
  DecoderCache cache_;
  int64_t reserved_ = 0;  // pages
  std::vector<Active> active_;
  std::vector<FinishedSentence> finished_;
};

}  // namespace gshard

#endif  // SERVICES_DECODING_RUNNING_BATCH_H_
