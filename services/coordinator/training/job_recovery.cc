#include "services/coordinator/training/job_recovery.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"

namespace gshard {

bool IsPassing(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsResourceExhausted(status) || absl::IsAborted(status) ||
         absl::IsCancelled(status) || absl::IsNotFound(status);
}

absl::Duration RetryDelay(absl::Duration delay, int32_t attempt) {
  return delay * (int64_t{1} << std::min(attempt, kMaxMicrobatchFailures) >> 1);
}

absl::Status RecoveryBudget::RecordLoss(int64_t step,
                                        const absl::Status& cause) {
  if (step > best_step_) {
    best_step_ = step;
    in_a_row_ = 0;
  }
  if (++in_a_row_ <= most_) return absl::OkStatus();
  return Annotate(cause, absl::StrCat("gave up after ", in_a_row_ - 1,
                                      " recoveries without a step further"));
}

bool BuddiesAreLeft(const std::set<size_t>& lost, size_t workers) {
  return std::none_of(lost.begin(), lost.end(), [&](size_t w) {
    return lost.count((w + 1) % workers) > 0;
  });
}

}  // namespace gshard
