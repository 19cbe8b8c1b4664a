// Times in headers of HTTP answers. Pure.

#ifndef SERVICES_HTTP_HTTP_TIME_H_
#define SERVICES_HTTP_HTTP_TIME_H_

#include <optional>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace gshard {

// Of "Sun, 06 Nov 1994 08:49:37 GMT"; InfinitePast() if `text` is no such time.
absl::Time ParseHttpTime(absl::string_view text);

// How long the value of "Retry-After", which is seconds or a time, asks to wait
// from `now` on: at least 0, and InfiniteDuration() at most. Nothing if it is
// neither.
std::optional<absl::Duration> ParseRetryAfter(absl::string_view text,
                                              absl::Time now);

}  // namespace gshard

#endif  // SERVICES_HTTP_HTTP_TIME_H_
