// Beam search for one sentence: pure bookkeeping, no model.
//
//   BeamSearch search(options, max_length, eos);
//   while (!search.done()) {
//     ... compute TopTokens for each live hypothesis ...
//     search.Advance(top_tokens);
//   }
//   search.Results();
//
// A hypothesis ends when its end-of-sentence token is among the beam_size best
// candidates of a step; the search ends when beam_size hypotheses have ended,
// or at the maximum length. Scores are log-probabilities divided by the length
// penalty ((5 + length) / 6)^alpha (Wu et al., arXiv:1609.08144), the length
// including the end-of-sentence token. Beam size 1 is greedy search.
//
// Instead of searching, hypotheses may be drawn at random: see Sampling.
//
// With phrases that a translation must contain, hypotheses end only when they
// contain all of them, and the beam is shared by beam_banks.h.

#ifndef SERVICES_DECODING_BEAM_SEARCH_H_
#define SERVICES_DECODING_BEAM_SEARCH_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "services/decoding/phrase_constraints.h"
#include "services/ops/top_tokens.h"

namespace gshard {

// Each token is drawn from the top_k most probable ones, with probabilities in
// proportion to p^(1 / temperature). Draws are functions of the seed, the
// hypothesis's number and the position.
struct Sampling {
  int top_k = 10;            // >= 1
  double temperature = 1.0;  // > 0
  uint64_t seed = 0;
};

struct DecodeOptions {
  int beam_size = 4;            // >= 1
  double length_penalty = 0.6;  // alpha >= 0
  int max_length = 0;           // tokens; 0: 2 * source tokens + 10
  int n_best = 1;               // in [1, beam_size]

  // Tokens that start every hypothesis; fewer than the maximum length.
  std::vector<int32_t> prefix = {};

  // Phrases that a hypothesis must contain, possibly in its prefix; together
  // with the prefix they have fewer tokens than the maximum length. They
  // contain no end of sentence and no token that is never produced.
  std::vector<std::vector<int32_t>> phrases = {};

  // Instead of a search: the beam_size best tokens after the prefix, each
  // continued by greedy search. No phrases.
  bool alternatives = false;

  // Instead of a search: beam_size hypotheses that are drawn, each on its own,
  // after the prefix. No phrases, and no alternatives.
  std::optional<Sampling> sampling = {};

  bool allow_unknown = false;  // may produce the unknown token
  bool require_full = false;   // no result if experts are lost
};

struct DecodedHypothesis {
  std::vector<int32_t> ids;  // without end of sentence
  double score = 0.0;        // log-probability over the length penalty
  int token_count = 0;       // with end of sentence, if reached
  bool truncated = false;    // stopped at the maximum length
  int phrases_met = 0;       // number of DecodeOptions::phrases met
  // Share of the sentence's expert choices so far, including the source, for
  // which no expert was available.
  double lost_share = 0.0;
};

class BeamSearch {
 public:
  // `max_length` replaces options.max_length. REQUIRES: both are valid.
  BeamSearch(const DecodeOptions& options, int max_length, int32_t eos);

  bool done() const { return done_; }

  // Live hypotheses: 1 before the first step, then at most beam_size.
  int num_live() const { return static_cast<int>(live_.size()); }
  // The last token of live hypothesis i. REQUIRES: a step was made.
  int32_t last_token(int i) const { return live_[i].ids.back(); }
  // The live hypothesis of the previous step that i continues.
  int parent(int i) const { return live_[i].parent; }

  // Number of candidates that Advance needs of each hypothesis.
  int candidates_wanted() const {
    return options_.sampling ? options_.sampling->top_k
                             : 2 * options_.beam_size;
  }
  // Tokens that it additionally needs of live hypothesis i, however unlikely.
  std::vector<int32_t> tokens_wanted(int i) const;

  // candidates[i] are the TopTokens of live hypothesis i.
  void Advance(absl::Span<const std::vector<TokenScore>> candidates);

  // Best first, n_best at most.
  std::vector<DecodedHypothesis> Results() const;

 private:
  struct Live {
    std::vector<int32_t> ids;
    double log_probability = 0.0;
    int parent = 0;
    PhraseConstraints::State state;
    int number = 0;  // of one that is drawn
  };
  struct Candidate {
    int parent;
    int32_t token;
    double log_probability;
    PhraseConstraints::State state;
    int number = 0;
  };

  double Score(double log_probability, int length) const;
  void Finish(std::vector<int32_t> ids, const Candidate& last, bool truncated);
  // All possible continuations, best first.
  std::vector<Candidate> Candidates(
      absl::Span<const std::vector<TokenScore>> scores) const;
  // The token of each hypothesis that is drawn.
  std::vector<Candidate> Draws(
      absl::Span<const std::vector<TokenScore>> scores) const;
  // Those of Candidates(), without those that do not fit the beam.
  std::vector<Candidate> InBanks(std::vector<Candidate> all) const;

  DecodeOptions options_;
  PhraseConstraints phrases_;
  int max_length_;
  int32_t eos_;
  std::vector<Live> live_;
  std::vector<DecodedHypothesis> finished_;
  bool done_ = false;
};

}  // namespace gshard

#endif  // SERVICES_DECODING_BEAM_SEARCH_H_
