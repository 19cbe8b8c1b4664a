// Clipping by the global norm: the norm of all gradients of a step together,
// including those of experts on other machines.
//
// Each process sums the squares of its logical tensors, one double per tensor.
// The process that collects these adds them in order of name, so the norm does
// not depend on the placement of tensors.

#ifndef SERVICES_TRAIN_GRADIENT_NORM_H_
#define SERVICES_TRAIN_GRADIENT_NORM_H_

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace gshard {

// In double, in an order that depends only on the number of values.
double SumOfSquares(absl::Span<const float> values);

// The factor that scales a gradient with this sum of squares down to
// `max_norm`: 1 if its norm is not larger or if `max_norm` is 0 (no clipping).
//
// Errors: InvalidArgument if `sum_of_squares` is negative or not finite, which
// means that a gradient is not finite and the update must not be made;
// InvalidArgument if `max_norm` is negative or not finite.
absl::StatusOr<double> GlobalNormScale(double sum_of_squares, double max_norm);

}  // namespace gshard

#endif  // SERVICES_TRAIN_GRADIENT_NORM_H_
