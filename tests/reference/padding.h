// Reference for services/ops/padding.h and reverse.h in plain loops.

#ifndef TESTS_REFERENCE_PADDING_H_
#define TESTS_REFERENCE_PADDING_H_

#include "absl/types/span.h"
#include "services/ops/padding.h"
#include "services/tensor/tensor.h"

namespace gshard::reference {

Tensor Pad(const Tensor& x, absl::Span<const Padding> padding, double value);
Tensor MaskTail(const Tensor& x, int dim, int64_t limit, double value);
Tensor Reverse(const Tensor& x, absl::Span<const int> dims);

}  // namespace gshard::reference

#endif  // TESTS_REFERENCE_PADDING_H_
