// Which traces are recorded. Pure.

#ifndef SERVICES_TRACE_SAMPLING_H_
#define SERVICES_TRACE_SAMPLING_H_

#include "absl/strings/string_view.h"

namespace gshard {

// Whether a trace that begins here is among the share `ratio` of all. Decided
// by the random part of its id, so that whoever has the ratio decides alike,
// and who has a higher one records all that others do.
// REQUIRES: `trace_id` has 32 lower-case hexadecimal digits.
bool IsSampled(absl::string_view trace_id, double ratio);

}  // namespace gshard

#endif  // SERVICES_TRACE_SAMPLING_H_
