// "Did you mean ...?" Finds the name closest to a mistyped one.

#ifndef SERVICES_CONFIG_NEAREST_NAME_H_
#define SERVICES_CONFIG_NEAREST_NAME_H_

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace gshard {

// The first of `names` with the smallest edit distance to `name`; none if all
// distances exceed a third of its letters (or two), since then it is another
// word.
std::optional<std::string> NearestName(absl::string_view name,
                                       const std::vector<std::string>& names);

// The same; none if all distances exceed `most`.
std::optional<std::string> NearestNameWithin(
    absl::string_view name, const std::vector<std::string>& names, size_t most);

}  // namespace gshard

#endif  // SERVICES_CONFIG_NEAREST_NAME_H_
