#include "services/decoding/beam_search.h"

#include <algorithm>
#include <cmath>

#include "services/base/check.h"

namespace gshard {

BeamSearch::BeamSearch(const DecodeOptions& options, int max_length,
                       int32_t eos)
    : options_(options), max_length_(max_length), eos_(eos), live_(1) {
  CHECK(options.beam_size >= 1 && max_length >= 1);
}

double BeamSearch::Score(double log_probability, int length) const {
  return log_probability /
         std::pow((5.0 + length) / 6.0, options_.length_penalty);
}

void BeamSearch::Finish(const Live& hypothesis, double log_probability,
                        int length, bool truncated) {
  finished_.push_back({.ids = hypothesis.ids,
                       .score = Score(log_probability, length),
                       .token_count = length,
                       .truncated = truncated});
}

void BeamSearch::Advance(absl::Span<const std::vector<TokenScore>> candidates) {
  CHECK(!done_ && candidates.size() == live_.size());
  struct Candidate {
    int parent;
    int32_t token;
    double log_probability;
  };
  std::vector<Candidate> all;
  for (size_t i = 0; i < live_.size(); ++i) {
    for (const TokenScore& score : candidates[i]) {
      all.push_back({static_cast<int>(i), score.token,
                     live_[i].log_probability + score.log_probability});
    }
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Candidate& a, const Candidate& b) {
                     return a.log_probability > b.log_probability;
                   });

  std::vector<Live> next;
  const int length = static_cast<int>(live_[0].ids.size()) + 1;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const Candidate& candidate = all[rank];
    if (static_cast<int>(next.size()) == options_.beam_size) break;
    if (candidate.token == eos_) {
      if (static_cast<int>(rank) < options_.beam_size) {
        Finish(live_[candidate.parent], candidate.log_probability, length,
               /*truncated=*/false);
      }
      continue;
    }
    Live live{.ids = live_[candidate.parent].ids,
              .log_probability = candidate.log_probability,
              .parent = candidate.parent};
    live.ids.push_back(candidate.token);
    next.push_back(std::move(live));
  }

  done_ = static_cast<int>(finished_.size()) >= options_.beam_size ||
          length >= max_length_ || next.empty();
  if (length >= max_length_) {
    for (const Live& live : next) {
      if (static_cast<int>(finished_.size()) >= options_.beam_size) break;
      Finish(live, live.log_probability, length, /*truncated=*/true);
    }
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
