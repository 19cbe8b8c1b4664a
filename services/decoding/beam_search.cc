#include "services/decoding/beam_search.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "services/base/check.h"
#include "services/base/random.h"
#include "services/decoding/beam_banks.h"

namespace gshard {
namespace {

// `best` has the most probable one first.
const TokenScore& Draw(absl::Span<const TokenScore> best, double temperature,
                       uint64_t bits) {
  std::vector<double> weights;
  double sum = 0.0;
  for (const TokenScore& one : best) {
    weights.push_back(std::exp(
        (double{one.log_probability} - best[0].log_probability) / temperature));
    sum += weights.back();
  }
  double left = static_cast<double>(bits >> 11) * 0x1p-53 * sum;
  for (size_t i = 0; i + 1 < best.size(); ++i) {
    left -= weights[i];
    if (left < 0.0) return best[i];
  }
  return best.back();
}

}  // namespace

BeamSearch::BeamSearch(const DecodeOptions& options, int max_length,
                       int32_t eos)
    : options_(options),
      phrases_(options.phrases),
      max_length_(max_length),
      eos_(eos),
      live_(1) {
  CHECK(options.beam_size >= 1 && max_length >= 1);
  CHECK(static_cast<int>(options.prefix.size()) < max_length);
  CHECK(!options.alternatives || phrases_.empty());
  CHECK(!options.sampling || (phrases_.empty() && !options.alternatives));
}

double BeamSearch::Score(double log_probability, int length) const {
  return log_probability /
         std::pow((5.0 + length) / 6.0, options_.length_penalty);
}

void BeamSearch::Finish(std::vector<int32_t> ids, const Candidate& last,
                        bool truncated) {
  const int length = static_cast<int>(ids.size()) + (truncated ? 0 : 1);
  finished_.push_back({.ids = std::move(ids),
                       .score = Score(last.log_probability, length),
                       .token_count = length,
                       .truncated = truncated,
                       .phrases_met = phrases_.PhrasesMet(last.state)});
}

std::vector<int32_t> BeamSearch::tokens_wanted(int i) const {
  const size_t length = live_[i].ids.size();
  if (length < options_.prefix.size()) return {options_.prefix[length]};
  return phrases_.Wanted(live_[i].state);
}

std::vector<BeamSearch::Candidate> BeamSearch::Candidates(
    absl::Span<const std::vector<TokenScore>> scores) const {
  const size_t length = live_[0].ids.size();
  const bool forced = length < options_.prefix.size();
  // After its first token, an alternative continues on its own.
  const bool own = options_.alternatives && length > options_.prefix.size();
  const int left = max_length_ - static_cast<int>(length) - 1;
  std::vector<Candidate> all;
  for (size_t i = 0; i < live_.size(); ++i) {
    for (const TokenScore& score : scores[i]) {
      if (forced && score.token != options_.prefix[length]) continue;
      Candidate candidate{
          .parent = static_cast<int>(i),
          .token = score.token,
          .log_probability = live_[i].log_probability + score.log_probability,
          .state = live_[i].state};
      if (score.token == eos_) {
        if (!phrases_.Complete(candidate.state)) continue;
      } else {
        candidate.state = phrases_.Next(candidate.state, score.token);
      }
      // There must be room for the remaining phrases.
      if (phrases_.total() - phrases_.Progress(candidate.state) > left) {
        continue;
      }
      all.push_back(candidate);
      if (own) break;
    }
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Candidate& a, const Candidate& b) {
                     return a.log_probability > b.log_probability;
                   });
  // Alternatives are exactly these tokens: one that ends at once leaves no room
  // for another.
  const bool parting =
      options_.alternatives && length == options_.prefix.size();
  if (parting && static_cast<int>(all.size()) > options_.beam_size) {
    all.erase(all.begin() + options_.beam_size, all.end());
  }
  return all;
}

std::vector<BeamSearch::Candidate> BeamSearch::Draws(
    absl::Span<const std::vector<TokenScore>> scores) const {
  const Sampling& sampling = *options_.sampling;
  const size_t length = live_[0].ids.size();
  const bool parting = length == options_.prefix.size();
  const int draws = parting ? options_.beam_size : num_live();
  std::vector<Candidate> drawn;
  for (int i = 0; i < draws; ++i) {
    const int parent = parting ? 0 : i;
    const int number = parting ? i : live_[i].number;
    const TokenScore& token =
        Draw(scores[parent], sampling.temperature,
             RandomBits(FoldIn(sampling.seed, number), length));
    drawn.push_back({.parent = parent,
                     .token = token.token,
                     .log_probability =
                         live_[parent].log_probability + token.log_probability,
                     .state = live_[parent].state,
                     .number = number});
  }
  return drawn;
}

std::vector<BeamSearch::Candidate> BeamSearch::InBanks(
    std::vector<Candidate> all) const {
  std::vector<int> progress;
  for (const Candidate& candidate : all) {
    progress.push_back(phrases_.Progress(candidate.state));
  }
  std::vector<Candidate> chosen;
  for (const int i :
       ShareBeam(progress, phrases_.total() + 1, options_.beam_size)) {
    chosen.push_back(all[i]);
  }
  return chosen;
}

void BeamSearch::Advance(absl::Span<const std::vector<TokenScore>> candidates) {
  CHECK(!done_ && candidates.size() == live_.size());
  const bool forced = live_[0].ids.size() < options_.prefix.size();
  std::vector<Candidate> all =
      options_.sampling && !forced ? Draws(candidates) : Candidates(candidates);
  if (!phrases_.empty()) all = InBanks(std::move(all));
  const int length = static_cast<int>(live_[0].ids.size()) + 1;
  const bool last = length >= max_length_;
  std::vector<Live> next;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const Candidate& candidate = all[rank];
    if (static_cast<int>(next.size()) == options_.beam_size) break;
    std::vector<int32_t> ids = live_[candidate.parent].ids;
    if (candidate.token == eos_) {
      if (static_cast<int>(rank) < options_.beam_size) {
        Finish(std::move(ids), candidate, /*truncated=*/false);
      }
      continue;
    }
    ids.push_back(candidate.token);
    next.push_back({.ids = std::move(ids),
                    .log_probability = candidate.log_probability,
                    .parent = candidate.parent,
                    .state = candidate.state,
                    .number = candidate.number});
  }
  const auto full = [this] {
    return static_cast<int>(finished_.size()) >= options_.beam_size;
  };
  done_ = full() || last || next.empty();
  for (size_t i = 0; last && i < next.size() && !full(); ++i) {
    Finish(next[i].ids,
           {.parent = 0,
            .token = 0,
            .log_probability = next[i].log_probability,
            .state = next[i].state},
           /*truncated=*/true);
  }
  live_ = std::move(next);
}

std::vector<DecodedHypothesis> BeamSearch::Results() const {
  std::vector<DecodedHypothesis> results = finished_;
  std::stable_sort(results.begin(), results.end(),
                   [](const DecodedHypothesis& a, const DecodedHypothesis& b) {
                     return a.score > b.score;
                   });
  if (static_cast<int>(results.size()) > options_.n_best) {
    results.resize(options_.n_best);
  }
  return results;
}

}  // namespace gshard
