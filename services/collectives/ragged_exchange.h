// Ragged collectives: exchange rows sorted by expert between the devices that
// have the tokens and those that have the experts.
//
// n is the size of the group. The E experts are divided into contiguous blocks
// of ceil(E / n); rank q has block q, and the last ranks may have fewer experts
// or none. Rows are [R, ...], any element type and any dims after the first,
// the same on all members; R differs. Group sizes are i32[E]: rows of expert 0
// come first, group_sizes[0] of them, then those of expert 1, and so on.
//
// GShard's all-to-all (arXiv 2006.16668, section 3.3), without padding to a
// capacity: group sizes are sent before the rows.
//
// Errors of all: InvalidArgument if an argument's type or dims are not those
// below, or sizes are negative or do not add up to the rows, on the member that
// sees it; and the errors of Communicator::Exchange, such as InvalidArgument if
// members disagree about E or the size of a row.

#ifndef SERVICES_COLLECTIVES_RAGGED_EXCHANGE_H_
#define SERVICES_COLLECTIVES_RAGGED_EXCHANGE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "services/collectives/communicator.h"
#include "services/tensor/tensor.h"

namespace gshard {

// Number of experts in a block.
int64_t ExpertBlock(int64_t experts, int members);

struct RaggedRows {
  // Rows sorted by (expert, source rank), in their order there.
  Tensor rows;
  // Rows of each expert, over all ranks. For RaggedAllToAll i32[ceil(E/n)],
  // zero beyond expert E - 1; for RaggedAllGather i32[E].
  Tensor group_sizes;
  // The same per source rank: i32[n, size of group_sizes].
  Tensor counts;
};

// Sends each row to the rank that has its expert.
absl::StatusOr<RaggedRows> RaggedAllToAll(Communicator& comm,
                                          const Tensor& rows,
                                          const Tensor& group_sizes);

// The exact inverse: returns rows, which have the order of RaggedAllToAll's
// result but possibly other dims after the first and another type, to their
// source ranks. `counts` is RaggedAllToAll's result and `group_sizes` was its
// argument. The result has the order of its argument.
absl::StatusOr<Tensor> RaggedAllToAllBack(Communicator& comm,
                                          const Tensor& rows,
                                          const Tensor& counts,
                                          const Tensor& group_sizes);

// All rows of all members, on every member.
absl::StatusOr<RaggedRows> RaggedAllGather(Communicator& comm,
                                           const Tensor& rows,
                                           const Tensor& group_sizes);

// The inverse, without communication: the rows from `rank`, sorted by expert.
// `rows` are in the order of RaggedAllGather's result, `counts` is its i32[n,
// E].
absl::StatusOr<Tensor> RaggedLocalRows(const Tensor& rows, const Tensor& counts,
                                       int rank);

}  // namespace gshard

#endif  // SERVICES_COLLECTIVES_RAGGED_EXCHANGE_H_
