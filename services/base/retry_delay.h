// The retry delay that an error carries.

#ifndef SERVICES_BASE_RETRY_DELAY_H_
#define SERVICES_BASE_RETRY_DELAY_H_

#include <chrono>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace gshard {

// Sets the delay of an error, replacing any earlier one. Returns OK unchanged.
absl::Status WithRetryDelay(absl::Status status,
                            std::chrono::milliseconds delay);

// ResourceExhausted, with a delay in which others may free memory.
absl::Status NoMemoryError(absl::string_view message);

// Nothing if a retry is useless, or if the delay is unknown.
std::optional<std::chrono::milliseconds> RetryDelay(const absl::Status& status);

}  // namespace gshard

#endif  // SERVICES_BASE_RETRY_DELAY_H_
