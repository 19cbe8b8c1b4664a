// The retry delay that an error carries.

#ifndef SERVICES_BASE_RETRY_DELAY_H_
#define SERVICES_BASE_RETRY_DELAY_H_

#include <chrono>
#include <optional>

#include "absl/status/status.h"

namespace gshard {

// Sets the delay of an error, replacing any earlier one. Returns OK unchanged.
absl::Status WithRetryDelay(absl::Status status,
                            std::chrono::milliseconds delay);

// Nothing if a retry is useless, or if the delay is unknown.
std::optional<std::chrono::milliseconds> RetryDelay(const absl::Status& status);

}  // namespace gshard

#endif  // SERVICES_BASE_RETRY_DELAY_H_
