#include "expert_worker/replica.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"

namespace gshard {

absl::Status Replica::Take(int64_t step, GradientList sums) {
  RETURN_IF_ERROR(store_.CheckGradients(sums));
  std::lock_guard<std::mutex> lock(mutex_);
  if (sums_.has_value() && sums_->step == step) return absl::OkStatus();
  sums_ = Sums{step, std::move(sums)};
  return absl::OkStatus();
}

bool Replica::Has(int64_t step) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return sums_.has_value() && sums_->step == step;
}

absl::Status Replica::Commit(int64_t step, double gradient_scale,
                             double learning_rate, bool skip) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!sums_.has_value() || sums_->step != step) {
    return absl::FailedPreconditionError(
        absl::StrCat("step ", step, ": the replica has not got its gradients"));
  }
  if (!skip) {
    store_.Update(sums_->gradients, gradient_scale, step, learning_rate);
  }
  sums_.reset();
  return absl::OkStatus();
}

}  // namespace gshard
