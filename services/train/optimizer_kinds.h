// The factories of each kind of optimizer, for Optimizer::Create, and
// Adafactor's step, for a test device.

#ifndef SERVICES_TRAIN_OPTIMIZER_KINDS_H_
#define SERVICES_TRAIN_OPTIMIZER_KINDS_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "services/ops/adafactor_step.h"
#include "services/train/optimizer.h"

namespace gshard {

// Errors: InvalidArgument naming the option and its range.
absl::StatusOr<std::unique_ptr<Optimizer>> CreateAdafactor(
    const AdafactorOptions& options);
absl::StatusOr<std::unique_ptr<Optimizer>> CreateAdam(
    const AdamOptions& options);

// One Adafactor step of a tensor of shape `dims`; `state` is as in
// Optimizer::StateShapes.
void UpdateByAdafactor(const AdafactorStep& step,
                       absl::Span<const int64_t> dims, absl::Span<float> weight,
                       absl::Span<const float> gradient,
                       absl::Span<const absl::Span<float>> state);

// Write `in_range` as a comparison, which is false for NaN.
inline absl::Status CheckOption(bool in_range, absl::string_view name,
                                absl::string_view range, double value) {
  if (in_range) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " must be in ", range, ", got ", value));
}

}  // namespace gshard

#endif  // SERVICES_TRAIN_OPTIMIZER_KINDS_H_
