// Did you mean ...? The name that a mistyped one stands for.

#ifndef SERVICES_CONFIG_NEAREST_NAME_H_
#define SERVICES_CONFIG_NEAREST_NAME_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace gshard {

// The first of `names` that takes the fewest letters to insert, delete or
// replace to become `name`; none if all are further away than a third of its
// letters (or two), as then it is another word.
std::optional<std::string> NearestName(absl::string_view name,
                                       const std::vector<std::string>& names);

}  // namespace gshard

#endif  // SERVICES_CONFIG_NEAREST_NAME_H_
