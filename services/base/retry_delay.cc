#include "services/base/retry_delay.h"

#include <cstdint>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace gshard {
namespace {

constexpr char kPayload[] = "gshard/retry_delay_ms";

constexpr std::chrono::milliseconds kMemoryDelay{100};

}  // namespace

absl::Status WithRetryDelay(absl::Status status,
                            std::chrono::milliseconds delay) {
  if (!status.ok()) {
    status.SetPayload(kPayload, absl::Cord(absl::StrCat(delay.count())));
  }
  return status;
}

absl::Status NoMemoryError(absl::string_view message) {
  return WithRetryDelay(absl::ResourceExhaustedError(message), kMemoryDelay);
}

std::optional<std::chrono::milliseconds> RetryDelay(
    const absl::Status& status) {
  const auto payload = status.GetPayload(kPayload);
  int64_t delay = 0;
  if (!payload.has_value() ||
      !absl::SimpleAtoi(std::string(*payload), &delay)) {
    return std::nullopt;
  }
  return std::chrono::milliseconds(delay);
}

}  // namespace gshard
