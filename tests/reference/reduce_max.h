// Reference for services/ops/reduce_max.h in plain loops.

#ifndef TESTS_REFERENCE_REDUCE_MAX_H_
#define TESTS_REFERENCE_REDUCE_MAX_H_

#include "absl/types/span.h"
#include "services/tensor/tensor.h"

namespace gshard::reference {

Tensor ReduceMax(const Tensor& x, absl::Span<const int> dims);
Tensor ReduceMaxGradient(const Tensor& x, const Tensor& y, const Tensor& dy,
                         absl::Span<const int> dims);

}  // namespace gshard::reference

#endif  // TESTS_REFERENCE_REDUCE_MAX_H_
