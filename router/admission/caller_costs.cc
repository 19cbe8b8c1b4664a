#include "router/admission/caller_costs.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace gshard {
namespace {

constexpr double kLatest = 0.05;     // minimum weight of the latest sentence
constexpr double kHalfLife = 1'000;  // sentences of all callers

}  // namespace

void CallerCosts::Observe(const std::string& caller, int64_t source_tokens,
                          int64_t rounds, double row_cost) {
  ++observed_;
  if (callers_.size() == kMaxCallers && !callers_.contains(caller)) {
    callers_.erase(std::min_element(callers_.begin(), callers_.end(),
                                    [](const auto& a, const auto& b) {
                                      return a.second.last < b.second.last;
                                    }));
  }
  Mean& mean = callers_[caller];
  ++mean.sentences;
  mean.last = observed_;
  const double weight =
      std::max(kLatest, 1 / static_cast<double>(mean.sentences));
  const double ratio = static_cast<double>(std::max<int64_t>(rounds, 1)) /
                       static_cast<double>(source_tokens);
  mean.rounds += weight * (ratio - mean.rounds);
  mean.row_cost += weight * (row_cost - mean.row_cost);
  Summarize();
}

void CallerCosts::Summarize() {
  std::vector<double> rounds = {Mean().rounds};
  highest_row_cost_ = 1;
  for (const auto& [caller, mean] : callers_) {
    rounds.push_back(mean.rounds);
    highest_row_cost_ = std::max(highest_row_cost_, mean.row_cost);
  }
  // The lower median: one caller must not dominate.
  const auto middle =
      rounds.begin() + static_cast<std::ptrdiff_t>((rounds.size() - 1) / 2);
  std::nth_element(rounds.begin(), middle, rounds.end());
  usual_rounds_ = *middle;
  highest_rounds_ = *std::max_element(rounds.begin(), rounds.end());
}

CallerCosts::Mean CallerCosts::Now(const Mean& mean) const {
  const double kept =
      std::exp2(-static_cast<double>(observed_ - mean.last) / kHalfLife);
  return {.rounds = usual_rounds_ + kept * (mean.rounds - usual_rounds_),
          .row_cost = std::max(1.0, 1 + kept * (mean.row_cost - 1))};
}

void CallerCosts::Estimate(const std::string& caller,
                           SentenceCost& cost) const {
  const auto found = callers_.find(caller);
  const Mean mean = found == callers_.end() ? Mean{.rounds = usual_rounds_}
                                            : Now(found->second);
  cost.rounds =
      std::max(1.0, mean.rounds * static_cast<double>(cost.source_tokens));
  if (cost.max_rounds > 0) {
    cost.rounds = std::min(cost.rounds, static_cast<double>(cost.max_rounds));
  }
  cost.row_cost = mean.row_cost;
}

}  // namespace gshard
