// Fair shares of a common limit.

#ifndef SERVICES_BASE_SHARE_H_
#define SERVICES_BASE_SHARE_H_

#include <cstdint>

namespace gshard {

// Whether a user that holds `its` may take `more` when that leaves `free` for
// everyone: yes if it holds nothing, otherwise up to twice what it leaves. So a
// single user gets two thirds, two get two fifths each, and there is always
// room for a new one.
constexpr bool IsWithinShare(int64_t its, int64_t more, int64_t free) {
  return free >= 0 && (its == 0 || its + more <= 2 * free);
}

}  // namespace gshard

#endif  // SERVICES_BASE_SHARE_H_
