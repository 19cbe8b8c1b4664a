#include "services/decoding/beam_banks.h"

#include <algorithm>

namespace gshard {

std::vector<int> ShareBeam(const std::vector<int>& progress, int banks,
                           int beam) {
  std::vector<int> available(banks), taken(banks);
  for (const int bank : progress) ++available[bank];
  int left = beam;
  for (int b = 0; b < banks; ++b) {
    // The most advanced bank gets the remainder.
    const int share = beam / banks + (b == banks - 1 ? beam % banks : 0);
    taken[b] = std::min(share, available[b]);
    left -= taken[b];
  }
  for (int b = banks - 1; b >= 0; --b) {
    const int more = std::min(left, available[b] - taken[b]);
    taken[b] += more;
    left -= more;
  }
  std::vector<int> chosen;
  for (size_t i = 0; i < progress.size(); ++i) {
    if (taken[progress[i]]-- > 0) chosen.push_back(static_cast<int>(i));
  }
  return chosen;
}

}  // namespace gshard
