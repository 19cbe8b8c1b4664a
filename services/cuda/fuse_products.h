// Kernel fusion: the elementwise operators after a product of experts are
// computed before the product leaves the registers. Results keep the same bits.

#ifndef SERVICES_CUDA_FUSE_PRODUCTS_H_
#define SERVICES_CUDA_FUSE_PRODUCTS_H_

#include "services/graph/program.h"

namespace gshard {

// Replaces ragged_dot and those of the following nodes that come after it, in
// this order, each the only user of the previous one's result, by one node:
//
//   ragged_bias_add   with the same group sizes
//   cast              to bf16
//   relu
//
// The new node is "fused_ragged_dot"(rows, weights, group_sizes[, bias]) with
// the attributes type ("f32" or "bf16") and relu (0 or 1). RegisterFusedOps()
// registers this operator.
Program FuseProducts(const Program& program);

// Idempotent.
void RegisterFusedOps();

}  // namespace gshard

#endif  // SERVICES_CUDA_FUSE_PRODUCTS_H_
