#include "services/coordinator/serving/model_load.h"

#include <cmath>

namespace gshard {

void ModelLoads::Observe(const std::vector<v1::Member>& members,
                         MonotonicTime now) {
  std::map<std::pair<std::string, std::string>, Counts> counts;
  std::map<std::string, std::vector<double>> rows;  // since the last time
  for (const v1::Member& member : members) {
    for (const v1::SessionLoad& load : member.heartbeat().session_loads()) {
      const std::pair key(member.name(), load.session());
      const Counts present(load.expert_rows().begin(),
                           load.expert_rows().end());
      counts[key] = present;
      const auto before = counts_.find(key);
      if (before == counts_.end() || before->second.size() != present.size()) {
        continue;
      }
      std::vector<double>& sum = rows[load.session()];
      sum.resize(present.size());
      for (size_t e = 0; e < present.size(); ++e) {
        const int64_t last = before->second[e];
        if (last < 0 || present[e] <= last) continue;
        sum[e] += static_cast<double>(present[e] - last);
      }
    }
  }
  const double seconds = absl::ToDoubleSeconds(now - last_);
  last_ = now;
  counts_ = std::move(counts);
  std::erase_if(rates_, [&](const auto& rate) {
    for (const auto& [key, present] : counts_) {
      if (key.second == rate.first) return false;
    }
    return true;
  });
  if (!(seconds > 0.0) || !std::isfinite(seconds)) return;
  const double keep = std::exp2(-seconds / absl::ToDoubleSeconds(half_life_));
  for (const auto& [session, sum] : rows) {
    Rate& rate = rates_[session];
    if (rate.rows_per_second.size() != sum.size()) rate = Rate();
    rate.rows_per_second.resize(sum.size());
    for (size_t e = 0; e < sum.size(); ++e) {
      rate.rows_per_second[e] =
          keep * rate.rows_per_second[e] + (1.0 - keep) * sum[e] / seconds;
    }
    rate.weight = keep * rate.weight + (1.0 - keep);
  }
}

std::vector<double> ModelLoads::Of(const std::string& session) const {
  const auto found = rates_.find(session);
  // Decisions wait until a half-life has been observed.
  if (found == rates_.end() || found->second.weight < 0.5) return {};
  std::vector<double> rows = found->second.rows_per_second;
  double sum = 0.0;
  for (double& r : rows) sum += r /= found->second.weight;
  // Almost no traffic is not informative.
  if (sum < static_cast<double>(rows.size())) return {};
  return rows;
}

}  // namespace gshard
