// A delay that an error asks for before the same thing is tried again.

#ifndef SERVICES_BASE_RETRY_DELAY_H_
#define SERVICES_BASE_RETRY_DELAY_H_

#include <chrono>
#include <optional>

#include "absl/status/status.h"

namespace gshard {

// The error with a delay, which replaces one that it has. Does nothing to OK.
absl::Status WithRetryDelay(absl::Status status,
                            std::chrono::milliseconds delay);

// Without one, trying again is of no use, or nobody knows when.
std::optional<std::chrono::milliseconds> RetryDelay(const absl::Status& status);

}  // namespace gshard

#endif  // SERVICES_BASE_RETRY_DELAY_H_
