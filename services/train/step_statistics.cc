#include "services/train/step_statistics.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/check.h"
#include "services/base/status_macros.h"

namespace gshard {

double LayerStatistics::balance_loss() const {
  return groups == 0 ? 0.0 : balance_loss_sum / static_cast<double>(groups);
}

double LayerStatistics::imbalance() const {
  const int64_t rows =
      std::accumulate(expert_rows.begin(), expert_rows.end(), int64_t{0});
  if (rows == 0) return 0.0;
  const int64_t most =
      *std::max_element(expert_rows.begin(), expert_rows.end());
  return static_cast<double>(most) * static_cast<double>(expert_rows.size()) /
         static_cast<double>(rows);
}

absl::Status StepStatistics::Merge(const StepStatistics& other) {
  const bool is_first = layers.empty();
  if (!is_first && layers.size() != other.layers.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected statistics of ", layers.size(), " layers, got ",
                     other.layers.size()));
  }
  for (size_t l = 0; l < layers.size(); ++l) {
    if (layers[l].expert_rows.size() != other.layers[l].expert_rows.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("layer ", l, ": expected statistics of ",
                       layers[l].expert_rows.size(), " experts, got ",
                       other.layers[l].expert_rows.size()));
    }
  }
  target_tokens += other.target_tokens;
  sentences += other.sentences;
  loss_sum += other.loss_sum;
  logit_magnitude = std::max(logit_magnitude, other.logit_magnitude);
  if (is_first) {
    layers = other.layers;
    return absl::OkStatus();
  }
  for (size_t l = 0; l < layers.size(); ++l) {
    LayerStatistics& to = layers[l];
    const LayerStatistics& from = other.layers[l];
    to.balance_loss_sum += from.balance_loss_sum;
    to.groups += from.groups;
    to.logit_magnitude = std::max(to.logit_magnitude, from.logit_magnitude);
    to.routed_first += from.routed_first;
    to.routed_second += from.routed_second;
    to.overflow_first += from.overflow_first;
    to.overflow_second += from.overflow_second;
    for (size_t e = 0; e < to.expert_rows.size(); ++e) {
      to.expert_rows[e] += from.expert_rows[e];
    }
  }
  return absl::OkStatus();
}

double StepStatistics::loss() const {
  return target_tokens == 0 ? 0.0
                            : loss_sum / static_cast<double>(target_tokens);
}

double StepStatistics::balance_loss() const {
  if (layers.empty()) return 0.0;
  double sum = 0.0;
  for (const LayerStatistics& layer : layers) sum += layer.balance_loss();
  return sum / static_cast<double>(layers.size());
}

double StepStatistics::overflow_share() const {
  int64_t overflow = 0, choices = 0;
  for (const LayerStatistics& layer : layers) {
    overflow += layer.overflow_first + layer.overflow_second;
    choices += layer.routed_first + layer.routed_second + layer.overflow_first +
               layer.overflow_second;
  }
  return choices == 0
             ? 0.0
             : static_cast<double>(overflow) / static_cast<double>(choices);
}

double StepStatistics::gate_logit_magnitude() const {
  double most = 0.0;
  for (const LayerStatistics& layer : layers) {
    most = std::max(most, layer.logit_magnitude);
  }
  return most;
}

absl::Status OrderedStatistics::Add(int32_t index, StepStatistics statistics) {
  CHECK(index >= next_);
  CHECK(early_.try_emplace(index, std::move(statistics)).second);
  for (auto first = early_.begin();
       first != early_.end() && first->first == next_;
       first = early_.erase(first), ++next_) {
    RETURN_IF_ERROR(sums_.Merge(first->second));
  }
  return absl::OkStatus();
}

}  // namespace gshard
