// Runs the blocks of a kernel (services/cuda/kernels/block.h) on this CPU, one
// after the other, each thread as a fiber.
//
// Finds errors that a GPU might hide: between two barriers each warp runs to
// its end before the next starts, with warps and their threads in random order;
// shared memory starts as NaN; and an asynchronous copy is made, at random,
// either at once, even if its target is still read, or when its thread waits
// for it. A CHECK fails if threads of a warp wait for different things, or if
// rows of a matrix are in the same banks.

#ifndef TESTS_SERVICES_CUDA_BLOCK_EMULATOR_H_
#define TESTS_SERVICES_CUDA_BLOCK_EMULATOR_H_

#include <cstdint>
#include <functional>

#include "services/cuda/kernels/block.h"

namespace gshard::cuda {

struct Grid {
  int64_t blocks = 1;
  int threads = kWarp;  // a multiple of kWarp
  int shared_bytes = 0;
  uint64_t seed = 1;  // of all random choices
};

void RunBlocks(const Grid& grid, const std::function<void()>& body);

}  // namespace gshard::cuda

#endif  // TESTS_SERVICES_CUDA_BLOCK_EMULATOR_H_
