// Text with checksums that locate damage by line: one JSON member or element
// per line, closed by
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

// `lines`, without line feeds, with their seal. The first is "{", and the last
// ends with a comma.
std::string SealLines(const std::vector<std::string>& lines);

// Describes line `index` (from 0), whose text may be damaged: "the field
// 'step'".
using DescribeLine =
    std::function<std::string(size_t index, absl::string_view line)>;

// OK if `text` is exactly SealLines' output. Errors: DataLoss naming the first
// damaged line.
absl::Status CheckSeal(absl::string_view text, const DescribeLine& describe);

}  // namespace gshard

#endif  // SERVICES_CHECKPOINT_SEALED_LINES_H_
