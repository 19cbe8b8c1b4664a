// Text with checksums that locate damage by line: one JSON object of one member
// or element a line, closed by
//
//   "lines":["1f3a90c2",...],   the first 8 digits of each line's SHA-256
//   "sha256":"..."              of all text before this line
//   }
//
// A single digest would find any change but could not say what changed.

#ifndef SERVICES_CHECKPOINT_SEALED_LINES_H_
#define SERVICES_CHECKPOINT_SEALED_LINES_H_

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace gshard {

// `lines`, none of which has a line feed, with their seal. The first is "{",
// and the last ends with a comma.
std::string SealLines(const std::vector<std::string>& lines);

// What to call the line `index` (from 0), whose text may be damaged: "the field
// 'step'".
using DescribeLine =
    std::function<std::string(size_t index, absl::string_view line)>;

// OK if `text` is what SealLines returned, to the byte. Errors: DataLoss naming
// the first line that is damaged.
absl::Status CheckSeal(absl::string_view text, const DescribeLine& describe);

}  // namespace gshard

#endif  // SERVICES_CHECKPOINT_SEALED_LINES_H_
