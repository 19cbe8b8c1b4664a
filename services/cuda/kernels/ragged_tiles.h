// Which rows the blocks of a ragged kernel work on.
//
// Rows are sorted by expert, those of expert e after those of expert e - 1. A
// tile has rows of one expert.

#ifndef SERVICES_CUDA_KERNELS_RAGGED_TILES_H_
#define SERVICES_CUDA_KERNELS_RAGGED_TILES_H_

#include <cstdint>
#include <span>
#include <vector>

namespace gshard::cuda {

struct RaggedTile {
  int64_t first_row;
  int32_t expert;
  int32_t rows;  // 1 to the tile's size
};

// Tiles of `tile_rows`, the last of an expert with what is left, of experts
// with more than `above` rows and at most `most`.
std::vector<RaggedTile> RaggedTiles(std::span<const int32_t> group_sizes,
                                    int32_t tile_rows, int32_t above,
                                    int32_t most);

// Row at which each expert's begin, and at last the number of rows: E + 1.
std::vector<int64_t> GroupOffsets(std::span<const int32_t> group_sizes);

}  // namespace gshard::cuda

#endif  // SERVICES_CUDA_KERNELS_RAGGED_TILES_H_
