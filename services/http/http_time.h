// Times in HTTP response headers. Pure functions.

#ifndef SERVICES_HTTP_HTTP_TIME_H_
#define SERVICES_HTTP_HTTP_TIME_H_

#include <optional>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace gshard {

// Parses "Sun, 06 Nov 1994 08:49:37 GMT"; InfinitePast() if malformed.
absl::Time ParseHttpTime(absl::string_view text);

// How long a "Retry-After" value, seconds or a time, asks to wait from `now`
// on: 0 to InfiniteDuration(). Nothing if it is malformed.
std::optional<absl::Duration> ParseRetryAfter(absl::string_view text,
                                              absl::Time now);

}  // namespace gshard

#endif  // SERVICES_HTTP_HTTP_TIME_H_
