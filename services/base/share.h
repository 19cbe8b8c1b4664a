// Shares of a limit that several have in common.

#ifndef SERVICES_BASE_SHARE_H_
#define SERVICES_BASE_SHARE_H_

#include <cstdint>

namespace gshard {

// Whether one that has `its` may take `more`, which leaves `free` to all: all
// that there is if it has nothing, otherwise up to twice what it leaves. So one
// alone has two thirds, two have two fifths each, and there is always room for
// somebody who comes new.
constexpr bool IsWithinShare(int64_t its, int64_t more, int64_t free) {
  return free >= 0 && (its == 0 || its + more <= 2 * free);
}

}  // namespace gshard

#endif  // SERVICES_BASE_SHARE_H_
