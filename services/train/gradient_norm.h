// Clipping by the global norm: of all gradients of a step together, those of
// experts on other machines included.
//
// Each process sums the squares of its logical tensors, one double per tensor;
// whoever has them all adds them in order of name, so that the norm does not
// depend on who held what.

#ifndef SERVICES_TRAIN_GRADIENT_NORM_H_
#define SERVICES_TRAIN_GRADIENT_NORM_H_

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace gshard {

// In double, in an order that depends on the number of values only.
double SumOfSquares(absl::Span<const float> values);

// The factor that brings a gradient of this sum of squares down to `max_norm`,
// 1 if it is there already or if `max_norm` is 0 (no clipping).
//
// Errors: InvalidArgument if `sum_of_squares` is negative or not finite, which
// means that a gradient is not finite: the step must not be made;
// InvalidArgument if `max_norm` is negative or not finite.
absl::StatusOr<double> GlobalNormScale(double sum_of_squares, double max_norm);

}  // namespace gshard

#endif  // SERVICES_TRAIN_GRADIENT_NORM_H_
