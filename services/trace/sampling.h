// Sampling of traces. Pure function.

#ifndef SERVICES_TRACE_SAMPLING_H_
#define SERVICES_TRACE_SAMPLING_H_

#include "absl/strings/string_view.h"

namespace gshard {

// Whether a trace that begins here is in the sampled share `ratio`. Decided by
// the random part of its id, so that all processes with the same ratio agree,
// and one with a higher ratio records all that others do. REQUIRES: `trace_id`
// has 32 lower-case hexadecimal digits.
bool IsSampled(absl::string_view trace_id, double ratio);

}  // namespace gshard

#endif  // SERVICES_TRACE_SAMPLING_H_
