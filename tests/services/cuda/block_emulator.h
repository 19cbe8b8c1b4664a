// Runs the blocks of a kernel (services/cuda/kernels/block.h) on this CPU, one
// after the other, each thread as a fiber.
//
// To find what a GPU might forgive: between two barriers each warp runs to its
// end before the next does, warps and their threads in random order; shared
// memory begins as NaN; and an asynchronous copy is made when its thread waits
// for it, not before, or, by chance, at once, whoever still reads what was
// there. Threads of a warp that wait for different things are a failed CHECK,
// and so are rows of a matrix that lie in the same banks.

#ifndef TESTS_SERVICES_CUDA_BLOCK_EMULATOR_H_
#define TESTS_SERVICES_CUDA_BLOCK_EMULATOR_H_

#include <cstdint>
#include <functional>

#include "services/cuda/kernels/block.h"

namespace gshard::cuda {

struct Grid {
  int64_t blocks = 1;
  int threads = kWarp;  // a multiple of it
  int shared_bytes = 0;
  uint64_t seed = 1;  // of the order
};

void RunBlocks(const Grid& grid, const std::function<void()>& body);

}  // namespace gshard::cuda

#endif  // TESTS_SERVICES_CUDA_BLOCK_EMULATOR_H_
