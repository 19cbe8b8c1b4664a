// Collectives: what the members of a group compute together, on dense tensors.
// Those on rows sorted by expert are in ragged_exchange.h.
//
// All members call the same function with the same arguments, apart from the
// values of the tensor. They are built on Communicator::Exchange alone, so a
// result has the same bits on every transport. Results never share memory with
// the communicator's buffers; in a group of one they may share the argument's.
// Below, n is the size of the group.
//
// Errors, of all: InvalidArgument for a dimension that does not exist or does
// not divide, on the member that sees it, before anything is sent; and what
// Communicator::Exchange returns, InvalidArgument among it where members bring
// tensors of different sizes.

#ifndef SERVICES_COLLECTIVES_COLLECTIVES_H_
#define SERVICES_COLLECTIVES_COLLECTIVES_H_

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "services/collectives/communicator.h"
#include "services/collectives/reduction.h"
#include "services/tensor/tensor.h"

namespace gshard {

// The members' tensors folded element by element in rank order, on every
// member. Any dims; f32, f64, i32 or i64. Each member folds one contiguous
// chunk and the chunks are gathered, so a member sends 2 (n - 1) / n of the
// tensor; small tensors go to everyone at once.
absl::StatusOr<Tensor> AllReduce(Communicator& comm, const Tensor& tensor,
                                 Reduction reduction = Reduction::kSum);

// Part `rank` along `dim` of AllReduce's sum, in the same bits. n must divide
// the size of `dim`, which comes out n times smaller.
absl::StatusOr<Tensor> ReduceScatter(Communicator& comm, const Tensor& tensor,
                                     int dim);

// The members' tensors, all of the same dims, joined along `dim` in rank order,
// on every member.
absl::StatusOr<Tensor> AllGather(Communicator& comm, const Tensor& tensor,
                                 int dim);

// Cuts `split_dim`, which n must divide, into n parts, sends part r to rank r
// and joins what comes along `concat_dim` in rank order. It is its own inverse
// with the two dimensions exchanged. They may be the same one.
absl::StatusOr<Tensor> AllToAll(Communicator& comm, const Tensor& tensor,
                                int split_dim, int concat_dim);

// The tensor of rank source[rank]; zeros where that is -1. source has n
// entries, the same on all members; one rank may be the source of several.
// Bytes move only between pairs that `source` joins.
absl::StatusOr<Tensor> Permute(Communicator& comm, const Tensor& tensor,
                               absl::Span<const int> source);

}  // namespace gshard

#endif  // SERVICES_COLLECTIVES_COLLECTIVES_H_
