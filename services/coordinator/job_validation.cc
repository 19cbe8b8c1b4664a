// A JobRunner and the text of its job: that all routers read the same, and what
// the loss is on the part that is held out.

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "services/base/check.h"
#include "services/base/log.h"
#include "services/coordinator/job_runner.h"

namespace gshard {

absl::Status JobRunner::OnTextLoaded(const MemberKey& router,
                                     const v1::SessionLoaded& loaded) {
  if (!loaded.has_text()) return absl::OkStatus();
  const v1::TextLoaded& text = loaded.text();
  if (!text_.has_value()) {
    text_ = text;
    reporter_->OnText(text);
    return absl::OkStatus();
  }
  if (text.digest() == text_->digest() && text.pairs() == text_->pairs() &&
      text.validation_microbatches() == text_->validation_microbatches()) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "router '", router.name,
      "' reads another text than the job began with: ", "expected ",
      text_->pairs(), " pairs and digest ", text_->digest().substr(0, 8),
      ", got ", text.pairs(), " and ", text.digest().substr(0, 8),
      "; a file has changed, or is not the same on all machines"));
}

bool JobRunner::ValidationDue(bool over) const {
  if (!text_.has_value() || text_->validation_microbatches() < 1) return false;
  const int64_t every = job_.validation.every_steps;
  return over || CheckpointDue() || (every > 0 && step_ % every == 0);
}

void JobRunner::BeginValidation() {
  validation_began_ = env_.clock();
  BeginMicrobatches(Phase::kValidating, text_->validation_microbatches());
}

absl::Status JobRunner::OnValidated() {
  StepStatistics sum;
  for (const StepStatistics& statistics : statistics_) {
    // All have the model's layers and experts.
    CHECK(sum.Merge(statistics).ok());
  }
  // No order is defined among losses that are not finite.
  if (std::isfinite(sum.loss())) {
    validation_loss_ = sum.loss();
  } else {
    LogWarning("the loss on the held-out text is not finite",
               {{"job", job_.name}, {"step", step_}});
  }
  reporter_->OnValidation(step_, sum, validation_began_, env_.clock());
  AfterStep();
  return absl::OkStatus();
}

}  // namespace gshard
