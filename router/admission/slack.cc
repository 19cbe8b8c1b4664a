#include "router/admission/slack.h"

#include <algorithm>
#include <iterator>

namespace gshard {

void Slack::Add(SteadyTime deadline, double seconds) {
  if (!least_.empty()) seconds = std::min(seconds, least_.back().second);
  least_.emplace_back(deadline, seconds);
}

const double* Slack::LeastBefore(SteadyTime deadline) const {
  const auto end = std::partition_point(
      least_.begin(), least_.end(),
      [&](const auto& entry) { return entry.first < deadline; });
  return end == least_.begin() ? nullptr : &std::prev(end)->second;
}

bool Slack::Allows(SteadyTime deadline, double work) const {
  const double* const least = LeastBefore(deadline);
  return least == nullptr || spent_ + work * work_seconds_ <= *least;
}

void Slack::Spend(SteadyTime deadline, double work) {
  if (LeastBefore(deadline) != nullptr) spent_ += work * work_seconds_;
}

}  // namespace gshard
