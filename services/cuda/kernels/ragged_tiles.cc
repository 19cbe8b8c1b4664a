#include "services/cuda/kernels/ragged_tiles.h"

#include <algorithm>

namespace gshard::cuda {

std::vector<RaggedTile> RaggedTiles(std::span<const int32_t> group_sizes,
                                    int32_t tile_rows, int32_t above,
                                    int32_t most) {
  std::vector<RaggedTile> tiles;
  int64_t begin = 0;
  for (size_t e = 0; e < group_sizes.size(); ++e) {
    const int32_t size = group_sizes[e];
    for (int32_t at = 0; above < size && size <= most && at < size;
         at += std::min(tile_rows, size - at)) {
      tiles.push_back({.first_row = begin + at,
                       .expert = static_cast<int32_t>(e),
                       .rows = std::min(tile_rows, size - at)});
    }
    begin += size;
  }
  return tiles;
}

std::vector<int64_t> GroupOffsets(std::span<const int32_t> group_sizes) {
  std::vector<int64_t> offsets = {0};
  for (const int32_t size : group_sizes) {
    offsets.push_back(offsets.back() + size);
  }
  return offsets;
}

}  // namespace gshard::cuda
