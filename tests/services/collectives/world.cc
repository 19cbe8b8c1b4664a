#include "tests/services/collectives/world.h"

#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace gshard {

absl::StatusOr<int> RankInGroup(int rank, int size,
                                absl::Span<const int> ranks) {
  int position = -1;
  bool valid = true;
  std::vector<bool> listed(size, false);
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] < 0 || ranks[i] >= size || listed[ranks[i]]) {
      valid = false;
      break;
    }
    listed[ranks[i]] = true;
    if (ranks[i] == rank) position = static_cast<int>(i);
  }
  if (!valid || position < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected different devices from 0 to ", size - 1, " with ", rank,
        " among them, got [", absl::StrJoin(ranks, ", "), "]"));
  }
  return position;
}

absl::StatusOr<Communicator*> WholeGroup(World& world) {
  std::vector<int> ranks(world.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return world.Group(ranks);
}

}  // namespace gshard
