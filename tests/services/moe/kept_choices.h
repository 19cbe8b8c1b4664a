// Formats routing as text, so that tests state the paper's vectors in a line
// each.

#ifndef TESTS_SERVICES_MOE_KEPT_CHOICES_H_
#define TESTS_SERVICES_MOE_KEPT_CHOICES_H_

#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "services/moe/gating.h"

namespace gshard {

// "s1 e0/1 .625000": token 1 is in slot 1 of expert 0 with weight .625; all
// kept choices by token, first choice before second.
inline std::vector<std::string> KeptChoices(const Routing& routing) {
  std::vector<std::string> kept;
  for (int64_t i = 0; i < routing.slot.size(); ++i) {
    if (routing.slot.i32()[i] < 0) continue;
    kept.push_back(
        absl::StrFormat("s%d e%d/%d %.6f", i / 2, routing.expert.i32()[i],
                        routing.slot.i32()[i], routing.weight.f32()[i]));
  }
  return kept;
}

}  // namespace gshard

#endif  // TESTS_SERVICES_MOE_KEPT_CHOICES_H_
