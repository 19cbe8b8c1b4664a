// Assigns the rows of a ragged batch to the blocks of a kernel.
//
// Rows are sorted by expert. A tile holds rows of one expert.

#ifndef SERVICES_CUDA_KERNELS_RAGGED_TILES_H_
#define SERVICES_CUDA_KERNELS_RAGGED_TILES_H_

#include <cstdint>
#include <span>
#include <vector>

namespace gshard::cuda {

struct RaggedTile {
  int64_t first_row;
  int32_t expert;
  int32_t rows;  // from 1 to the kernel's tile height
};

// The tiles of all experts that have more than `above` and at most `most` rows.
// Each tile has `tile_rows` rows, the last one of an expert the remainder.
std::vector<RaggedTile> RaggedTiles(std::span<const int32_t> group_sizes,
                                    int32_t tile_rows, int32_t above,
                                    int32_t most);

// [E + 1]: the first row of each expert, then the total number of rows.
std::vector<int64_t> GroupOffsets(std::span<const int32_t> group_sizes);

}  // namespace gshard::cuda

#endif  // SERVICES_CUDA_KERNELS_RAGGED_TILES_H_
