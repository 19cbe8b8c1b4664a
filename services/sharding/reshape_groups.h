// Matches the dimensions of a reshape that have the same elements.

#ifndef SERVICES_SHARDING_RESHAPE_GROUPS_H_
#define SERVICES_SHARDING_RESHAPE_GROUPS_H_

#include <cstddef>
#include <vector>

#include "services/graph/dim.h"

namespace gshard {

// Dimensions [from_begin, from_end) become [to_begin, to_end).
struct ReshapeGroup {
  size_t from_begin = 0;
  size_t from_end = 0;
  size_t to_begin = 0;
  size_t to_end = 0;
};

// The smallest groups of adjacent dimensions with the same product, in order:
// [6, 4, 5] to [3, 8, 5] gives {6, 4} to {3, 8} and {5} to {5}. Dimensions of
// size 1 at the edge of a group belong to none. If the sizes do not determine
// the groups (a 0, symbols), the last one is missing.
std::vector<ReshapeGroup> ReshapeGroups(const Shape& from, const Shape& to);

}  // namespace gshard

#endif  // SERVICES_SHARDING_RESHAPE_GROUPS_H_
