#include "services/config/nearest_name.h"

#include <algorithm>

namespace gshard {
namespace {

// Number of letters to insert, delete or replace to turn `a` into `b`.
size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

std::optional<std::string> NearestName(absl::string_view name,
                                       const std::vector<std::string>& names) {
  return NearestNameWithin(name, names, std::max<size_t>(2, name.size() / 3));
}

std::optional<std::string> NearestNameWithin(
    absl::string_view name, const std::vector<std::string>& names,
    size_t most) {
  std::optional<std::string> nearest;
  size_t least = most + 1;
  for (const std::string& candidate : names) {
    const size_t distance = EditDistance(name, candidate);
    if (distance < least) {
      nearest = candidate;
      least = distance;
    }
  }
  return nearest;
}

}  // namespace gshard
