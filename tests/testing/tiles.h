// Tiles: splits a whole tensor into the devices' parts, and joins them.
//
// Padding after the end of an uneven dimension is NaN, or the lowest integer:
// it is arbitrary data, and programs that read it should fail.

#ifndef TESTS_TESTING_TILES_H_
#define TESTS_TESTING_TILES_H_

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "services/partition/partitioner.h"
#include "services/tensor/tensor.h"

namespace gshard {

// Device `device`'s part of `whole`. Rows of a ragged batch need
// `group_sizes`, i32[E]; others leave it absent.
//
// Errors: InvalidArgument if the tensor is not of the placed type, a symbolic
// size does not divide evenly, or rows lack their group sizes; Unimplemented
// for rows by token and for partial values.
absl::StatusOr<Tensor> TileOf(const Tensor& whole, const Placed& placed,
                              const DeviceMesh& mesh, int64_t device,
                              const Tensor& group_sizes = Tensor());

// The whole tensor of `dims`, joined from the tiles of all devices of the
// placed role. Devices with copies of a tile must agree bit for bit.
//
// Errors: InvalidArgument for tiles of other types or sizes; Internal if
// copies differ, naming the devices; Unimplemented as TileOf.
absl::StatusOr<Tensor> JoinTiles(absl::Span<const Tensor> tiles,
                                 const Dims& dims, const Placed& placed,
                                 const DeviceMesh& mesh,
                                 const Tensor& group_sizes = Tensor());

}  // namespace gshard

#endif  // TESTS_TESTING_TILES_H_
