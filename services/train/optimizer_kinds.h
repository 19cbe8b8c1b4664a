// The makers of each kind of optimizer, for Optimizer::Create alone.

#ifndef SERVICES_TRAIN_OPTIMIZER_KINDS_H_
#define SERVICES_TRAIN_OPTIMIZER_KINDS_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "services/train/optimizer.h"

namespace gshard {

// Errors: InvalidArgument naming the option and its range.
absl::StatusOr<std::unique_ptr<Optimizer>> CreateAdafactor(
    const AdafactorOptions& options);
absl::StatusOr<std::unique_ptr<Optimizer>> CreateAdam(
    const AdamOptions& options);

// `in_range` is false for NaN if written as a comparison.
inline absl::Status CheckOption(bool in_range, absl::string_view name,
                                absl::string_view range, double value) {
  if (in_range) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " must be in ", range, ", got ", value));
}

}  // namespace gshard

#endif  // SERVICES_TRAIN_OPTIMIZER_KINDS_H_
