#include "services/sharding/reshape_groups.h"

namespace gshard {
namespace {

// Whether a dimension of size `a` could be one of several whose product is `b`.
bool IsLess(const Dim& a, const Dim& b) {
  if (a.symbols().size() != b.symbols().size()) {
    return a.symbols().size() < b.symbols().size();
  }
  return a.coefficient() < b.coefficient();
}

}  // namespace

std::vector<ReshapeGroup> ReshapeGroups(const Shape& from, const Shape& to) {
  std::vector<ReshapeGroup> groups;
  size_t i = 0, j = 0;
  while (i < from.size() || j < to.size()) {
    if (i < from.size() && from[i] == Dim(1)) {
      ++i;
      continue;
    }
    if (j < to.size() && to[j] == Dim(1)) {
      ++j;
      continue;
    }
    if (i == from.size() || j == to.size()) break;  // a size is 0
    ReshapeGroup group = {i, i + 1, j, j + 1};
    Dim a = from[i], b = to[j];
    // Extend either side until the products agree.
    while (!(a == b)) {
      if (IsLess(a, b) && group.from_end < from.size()) {
        a = a * from[group.from_end++];
      } else if (group.to_end < to.size()) {
        b = b * to[group.to_end++];
      } else if (group.from_end < from.size()) {
        a = a * from[group.from_end++];
      } else {
        break;
      }
    }
    i = group.from_end;
    j = group.to_end;
    if (a == b) groups.push_back(group);
  }
  return groups;
}

}  // namespace gshard
