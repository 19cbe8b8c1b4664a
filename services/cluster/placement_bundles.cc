#include "services/cluster/placement_bundles.h"

#include <algorithm>
#include <iterator>
#include <numeric>

namespace gshard {

BundleChange PlanBundles(absl::Span<const std::vector<int32_t>> held,
                         absl::Span<const int32_t> wanted) {
  BundleChange change;
  change.keep.assign(held.size(), false);
  std::vector<int32_t> missing(wanted.begin(), wanted.end());
  // Largest first: they are the most expensive to reload.
  std::vector<size_t> order(held.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return held[a].size() > held[b].size();
  });
  size_t bundles = 0;
  for (const size_t i : order) {
    if (held[i].empty() || !std::includes(missing.begin(), missing.end(),
                                          held[i].begin(), held[i].end())) {
      continue;
    }
    std::vector<int32_t> rest;
    std::set_difference(missing.begin(), missing.end(), held[i].begin(),
                        held[i].end(), std::back_inserter(rest));
    missing = std::move(rest);
    change.keep[i] = true;
    ++bundles;
  }
  if (bundles + !missing.empty() > kMaxBundles) {
    change.keep.assign(held.size(), false);
    missing.assign(wanted.begin(), wanted.end());
  }
  change.load = std::move(missing);
  return change;
}

}  // namespace gshard
