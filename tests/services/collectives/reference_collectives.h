// Reference collectives: functions of all members' tensors, in plain loops over
// elements. The real ones must give the same bits.

#ifndef TESTS_SERVICES_COLLECTIVES_REFERENCE_COLLECTIVES_H_
#define TESTS_SERVICES_COLLECTIVES_REFERENCE_COLLECTIVES_H_

#include <vector>

#include "services/collectives/ragged_exchange.h"
#include "services/collectives/reduction.h"
#include "services/tensor/tensor.h"

namespace gshard::reference {

// The members' arguments, by rank.
using Tensors = std::vector<Tensor>;

// Indices [begin, begin + count) of `dim`.
Tensor Slice(const Tensor& tensor, int dim, int64_t begin, int64_t count);
Tensor Concatenate(const Tensors& tensors, int dim);

// The result of every member.
Tensor AllReduce(const Tensors& tensors, Reduction reduction);
RaggedRows RaggedAllGather(const Tensors& rows, const Tensors& group_sizes);

// The result of `rank`.
Tensor ReduceScatter(const Tensors& tensors, int dim, int rank);
Tensor AllToAll(const Tensors& tensors, int split_dim, int concat_dim,
                int rank);
RaggedRows RaggedAllToAll(const Tensors& rows, const Tensors& group_sizes,
                          int rank);

}  // namespace gshard::reference

#endif  // TESTS_SERVICES_COLLECTIVES_REFERENCE_COLLECTIVES_H_
