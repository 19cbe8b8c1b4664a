#include "services/http/http_time.h"

#include <algorithm>

#include "absl/strings/ascii.h"

namespace gshard {

absl::Time ParseHttpTime(absl::string_view text) {
  absl::Time time;
  // absl also accepts "infinite-future".
  const bool parsed =
      absl::ParseTime("%a, %d %b %Y %H:%M:%S GMT", text, &time, nullptr);
  return parsed && time < absl::InfiniteFuture() ? time : absl::InfinitePast();
}

std::optional<absl::Duration> ParseRetryAfter(absl::string_view text,
                                              absl::Time now) {
  if (text.empty()) return std::nullopt;
  if (std::all_of(text.begin(), text.end(), absl::ascii_isdigit)) {
    absl::Duration seconds;
    for (const char digit : text) {
      seconds = seconds * 10 + absl::Seconds(digit - '0');
    }
    return seconds;
  }
  const absl::Time time = ParseHttpTime(text);
  if (time == absl::InfinitePast()) return std::nullopt;
  return std::max(absl::ZeroDuration(), time - now);
}

}  // namespace gshard
