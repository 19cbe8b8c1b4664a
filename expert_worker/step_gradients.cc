#include "expert_worker/step_gradients.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"

namespace gshard {
namespace {

absl::Status Abandoned(int32_t microbatch, int32_t attempt) {
  return absl::AbortedError(absl::StrCat(
      "microbatch ", microbatch, ", attempt ", attempt,
      " has made way for an earlier microbatch, or its router was lost"));
}

}  // namespace

StepGradients::StepGradients(std::vector<std::string> parameters, int64_t count,
                             int64_t max_early)
    : parameters_(std::move(parameters)),
      sum_(count, /*max_pending=*/max_early),
      microbatches_(count) {}

absl::StatusOr<std::optional<int32_t>> StepGradients::Enter(int32_t microbatch,
                                                            int32_t attempt) {
  std::lock_guard<std::mutex> lock(mutex_);
  const int64_t count = static_cast<int64_t>(microbatches_.size());
  if (microbatch < 0 || microbatch >= count || attempt < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected a microbatch in [0, ", count,
                     ") and an attempt of at least 0, got microbatch ",
                     microbatch, ", attempt ", attempt));
  }
  Microbatch& known = microbatches_[microbatch];
  if (attempt < known.attempt) {
    return absl::FailedPreconditionError(
        absl::StrCat("microbatch ", microbatch, ": attempt ", attempt,
                     " is superseded by attempt ", known.attempt));
  }
  if (attempt == known.attempt && known.abandoned) {
    return Abandoned(microbatch, attempt);
  }
  std::optional<int32_t> superseded;
  if (attempt > known.attempt) {
    if (known.attempt >= 0) superseded = known.attempt;
    known = {.attempt = attempt,
             .complete = false,
             .abandoned = false,
             .gradients = {}};
  }
  return superseded;
}

absl::Status StepGradients::Add(int32_t microbatch, int32_t attempt,
                                GradientList gradients, bool last) {
  std::lock_guard<std::mutex> lock(mutex_);
  Microbatch& known = microbatches_[microbatch];
  if (known.attempt != attempt || known.complete) {
    return absl::FailedPreconditionError(
        absl::StrCat("microbatch ", microbatch, ", attempt ", attempt,
                     " was superseded or completed meanwhile"));
  }
  // What earlier segments brought is gone, and nobody has memory for this.
  if (known.abandoned) return Abandoned(microbatch, attempt);
  for (auto& [parameter, gradient] : gradients) {
    if (!known.gradients.emplace(parameter, std::move(gradient)).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("two segments give the gradient of ", parameter));
    }
  }
  if (!last) return absl::OkStatus();
  std::vector<Tensor> values;
  for (const std::string& parameter : parameters_) {
    const auto found = known.gradients.find(parameter);
    if (found == known.gradients.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("no segment gives the gradient of ", parameter));
    }
    values.push_back(std::move(found->second));
  }
  known.gradients.clear();
  const absl::Status added = sum_.Add(microbatch, std::move(values));
  if (!added.ok() && !absl::IsAlreadyExists(added)) return added;
  known.complete = true;
  return absl::OkStatus();
}

void StepGradients::Drop(int32_t microbatch, int32_t attempt) {
  std::lock_guard<std::mutex> lock(mutex_);
  Microbatch& known = microbatches_[microbatch];
  if (known.attempt == attempt) known.gradients.clear();
}

bool StepGradients::Abandon(int32_t microbatch, int32_t attempt) {
  std::lock_guard<std::mutex> lock(mutex_);
  Microbatch& known = microbatches_[microbatch];
  if (known.attempt != attempt) return true;  // nothing of it is left
  if (known.complete) return false;
  known.gradients.clear();
  known.abandoned = true;
  return true;
}

absl::StatusOr<GradientList> StepGradients::Take(
    absl::Span<const int32_t> attempts) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (attempts.size() != microbatches_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected the attempts of ", microbatches_.size(),
                     " microbatches, got ", attempts.size()));
  }
  for (size_t i = 0; i < attempts.size(); ++i) {
    const Microbatch& known = microbatches_[i];
    if (known.attempt != attempts[i] || !known.complete) {
      return absl::FailedPreconditionError(absl::StrCat(
          "microbatch ", i, ": expected attempt ", attempts[i], ", have ",
          known.complete ? "" : "an incomplete ", "attempt ", known.attempt));
    }
  }
  std::vector<Tensor> sums = sum_.Take();
  GradientList gradients;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    gradients.emplace_back(parameters_[i], std::move(sums[i]));
  }
  return gradients;
}

}  // namespace gshard
