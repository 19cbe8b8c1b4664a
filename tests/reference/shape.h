// Reference for services/ops/{reduce,concat,embedding,transpose}.h.
//
// Each function visits the elements of its larger tensor and finds the partner
// of each by its coordinates.

#ifndef TESTS_REFERENCE_SHAPE_H_
#define TESTS_REFERENCE_SHAPE_H_

#include <cstdint>

#include "absl/types/span.h"
#include "services/tensor/tensor.h"

namespace gshard::reference {

Tensor ReduceSum(const Tensor& x, absl::Span<const int> dims);
Tensor Broadcast(const Tensor& x, const Dims& target,
                 absl::Span<const int> new_dims);
Tensor Concat(absl::Span<const Tensor> tensors, int dim);
Tensor Slice(const Tensor& x, int dim, int64_t begin, int64_t end);
Tensor SliceGradient(const Tensor& dy, int dim, int64_t begin, int64_t size);
Tensor GatherRows(const Tensor& x, const Tensor& indices);
Tensor ScatterAddRows(const Tensor& dy, const Tensor& indices,
                      int64_t num_rows);
Tensor Transpose(const Tensor& x, absl::Span<const int> permutation);

}  // namespace gshard::reference

#endif  // TESTS_REFERENCE_SHAPE_H_
