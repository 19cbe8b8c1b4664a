// RunningBatch: sentences that are decoded together, and that join and leave
// between any two positions.
//
//   RunningBatch batch(translator, parameters, limits);
//   RETURN_IF_ERROR(batch.Join({{.id = 7, .sentence = &sentence}}, run));
//   while (batch.sentences() > 0) {
//     RETURN_IF_ERROR(batch.Step(run));
//     for (FinishedSentence& finished : batch.TakeFinished()) ...
//   }
//
// Each hypothesis is a row at a position of its own: sentences of any length,
// age and beam share a step, and a step costs what its hypotheses cost. A
// sentence's result has the bits that it has alone, whoever joins and leaves.

#ifndef SERVICES_DECODING_RUNNING_BATCH_H_
#define SERVICES_DECODING_RUNNING_BATCH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "services/decoding/beam_search.h"
#include "services/decoding/choice_count.h"
#include "services/decoding/decoder_cache.h"
#include "services/decoding/translator.h"
#include "services/segments/segment_runner.h"

namespace gshard {

struct JoiningSentence {
  uint64_t id = 0;  // the caller's, no two alike in a batch
  const SourceSentence* sentence = nullptr;
};

struct FinishedSentence {
  uint64_t id = 0;
  std::vector<DecodedHypothesis> hypotheses;  // best first
  int64_t steps = 0;                          // that it took part in
  // What its rows cost in the steps, in rows of all that took part: a row costs
  // as much as its expert is loaded. 1 where nothing says which experts.
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

  // Encodes sentences together and adds them. After an error, which is of one
  // of them or of the segments' runner, none of them has joined and the others
  // are well. `statistics` may be null, here and below.
  //
  // Errors: InvalidArgument for a sentence that Translator::Check refuses or a
  // id that is taken; ResourceExhausted if the cache has no room for them;
  // those of the segments' runner.
  absl::Status Join(absl::Span<const JoiningSentence> joining,
                    SegmentRunner* segments, DecodeStatistics* statistics);

  // Takes a sentence out, unless it is not there. What it had of the cache is
  // free at once.
  void Leave(uint64_t id);

  // One position of every sentence. A sentence whose options require all
  // experts ends when choices of its were lost, with one hypothesis that has no
  // tokens but the share of them. After an error, one of the segments' runner,
  // the batch is of no use any more. Does nothing without sentences.
  absl::Status Step(SegmentRunner* segments, DecodeStatistics* statistics);

  // What has finished since it was last asked; it is not in the batch any more.
  std::vector<FinishedSentence> TakeFinished();

  int64_t sentences() const { return static_cast<int64_t>(active_.size()); }
  // Hypotheses that the next step decodes.
  int64_t rows() const;
  // Positions of the cache that sentences have reserved, or do use.
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
    std::vector<PageTable> pages;  // of each live hypothesis
    int64_t position = 0;          // that the next step decodes
    ChoiceCount choices;
    bool require_full = false;
  };

  absl::StatusOr<TensorMap> Encode(absl::Span<const JoiningSentence> joining,
                                   SegmentRunner* segments,
                                   DecodeStatistics* statistics,
                                   std::vector<ChoiceCount>* choices);
  // Lets each hypothesis write at its sentence's position.
  void MakeRoom(Active& active);
  TensorMap DecoderInputs();
  absl::Status Advance(const Tensor& logits);
  static void FollowParents(Active& active, PagePool& pages);
  void Release(Active& active);
  // Ends a sentence that must not do without experts.
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
