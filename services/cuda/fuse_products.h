// What of a program one kernel does instead of several: what follows a product
// of experts, element by element, is done before the product leaves the
// registers, with the same bits.

#ifndef SERVICES_CUDA_FUSE_PRODUCTS_H_
#define SERVICES_CUDA_FUSE_PRODUCTS_H_

#include "services/graph/program.h"

namespace gshard {

// Replaces ragged_dot and what of the following comes after it, in this order,
// each the only use of the one before, by one node:
//
//   ragged_bias_add   of the same group sizes
//   cast              to bf16
//   relu
//
// The node is a "fused_ragged_dot"(rows, weights, group_sizes[, bias]) with the
// attributes type ("f32" or "bf16") and relu (0 or 1), which RegisterFusedOps
// knows.
Program FuseProducts(const Program& program);

// Calling again does nothing.
void RegisterFusedOps();

}  // namespace gshard

#endif  // SERVICES_CUDA_FUSE_PRODUCTS_H_
