// Collectives on dense tensors. Those on rows sorted by expert are in
// ragged_exchange.h.
//
// All members call the same function with the same arguments, except for the
// tensor's values. All are built on Communicator::Exchange alone, so a result
// has the same bits on every transport. Results never share memory with the
// communicator's buffers; in a group of one they may share the argument's.
// Below, n is the size of the group.
//
// Errors of all: InvalidArgument for a dimension that does not exist or is not
// divisible, on the member that sees it, before anything is sent; and the
// errors of Communicator::Exchange, such as InvalidArgument if tensor sizes
// differ between members.

#ifndef SERVICES_COLLECTIVES_COLLECTIVES_H_
#define SERVICES_COLLECTIVES_COLLECTIVES_H_

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "services/collectives/communicator.h"
#include "services/collectives/reduction.h"
#include "services/tensor/tensor.h"

namespace gshard {

// The members' tensors reduced element by element in rank order, on every
// member. Any dims; f32, f64, i32 or i64. Each member reduces one contiguous
// chunk and the chunks are gathered, so a member sends 2 (n - 1) / n of the
// tensor; small tensors are sent whole to everyone.
absl::StatusOr<Tensor> AllReduce(Communicator& comm, const Tensor& tensor,
                                 Reduction reduction = Reduction::kSum);

// Part `rank` along `dim` of AllReduce's sum, with the same bits. The size of
// `dim` must be divisible by n.
absl::StatusOr<Tensor> ReduceScatter(Communicator& comm, const Tensor& tensor,
                                     int dim);

// The members' tensors, all of the same dims, joined along `dim` in rank order,
// on every member.
absl::StatusOr<Tensor> AllGather(Communicator& comm, const Tensor& tensor,
                                 int dim);

// Splits `split_dim`, whose size must be divisible by n, into n parts, sends
// part r to rank r and joins received parts along `concat_dim` in rank order.
// Swapping the two dimensions gives the inverse. They may be equal.
absl::StatusOr<Tensor> AllToAll(Communicator& comm, const Tensor& tensor,
                                int split_dim, int concat_dim);

// The tensor of rank source[rank]; zeros where that is -1. source has n
// entries, the same on all members; one rank may be the source of several.
// Bytes move only between pairs in `source`.
absl::StatusOr<Tensor> Permute(Communicator& comm, const Tensor& tensor,
                               absl::Span<const int> source);

}  // namespace gshard

#endif  // SERVICES_COLLECTIVES_COLLECTIVES_H_
