// Resharding: the nodes that convert a local tensor to another sharding.
//
// Uses the cheapest known way, in this order (GShard, arXiv 2006.16668, section
// 3.3; XLA's spmd_partitioner):
//   partial sums    reduce_scatter into a dimension that the target splits
//                   along the same axes, else all_reduce
//   part            of a dimension that is copied: no communication
//   all_to_all      moves axes from one dimension to another
//   permute         the same tiles on other devices
//   all_gather      axes that the target does not have
// Uneven dimensions are padded before they are split and trimmed after they are
// joined.

#ifndef SERVICES_PARTITION_RESHARD_H_
#define SERVICES_PARTITION_RESHARD_H_

#include "absl/status/statusor.h"
#include "services/partition/lowering.h"

namespace gshard {

// Number of elements of a device's part, for comparisons; a symbol counts as a
// thousand times its number of parts.
double RoughSize(const Shape& shape, const Sharding& sharding,
                 const DeviceMesh& mesh);

// Approximate elements that a device receives when a tensor is resharded: a
// part costs nothing, an all_to_all the device's part, an all_gather its
// result, an all_reduce twice the tensor.
double ReshardCost(const Shape& shape, const Sharding& from, const Sharding& to,
                   const DeviceMesh& mesh);

// Reshards a tensor without ragged rows, on one role. `shape` is the whole
// shape; `x` has LocalShape(shape, from), the result LocalShape(shape, to).
//
// Errors: Unimplemented if `to` is partial along an axis that `from` is not.
absl::StatusOr<ValueId> ReshardDense(Lowering& l, ValueId x, const Shape& shape,
                                     Sharding from, Sharding to);

// Reshards ragged rows: the first dimension of `from` and `to` may differ by
// expert and by token, and in role. `value` is the program's, for its group
// sizes; other dimensions of `to` equal those of `from`.
//
// Errors: Unimplemented for unsupported moves, naming the value.
absl::StatusOr<ValueId> ReshardRows(Lowering& l, ValueId value,
                                    const LocalValue& from, const Sharding& to,
                                    int role);

}  // namespace gshard

#endif  // SERVICES_PARTITION_RESHARD_H_
