// The kernels of services/cuda/kernels, run by the emulator.

#ifndef TESTS_SERVICES_CUDA_EMULATED_KERNELS_H_
#define TESTS_SERVICES_CUDA_EMULATED_KERNELS_H_

#include <algorithm>

#include "services/cuda/kernels/attention_tiles.h"
#include "services/cuda/kernels/elementwise.h"
#include "services/cuda/kernels/optimizer_steps.h"
#include "services/cuda/kernels/ragged_product.h"
#include "services/cuda/kernels/row_sums.h"
#include "services/cuda/kernels/rows.h"
#include "tests/services/cuda/block_emulator.h"

namespace gshard::cuda {

template <typename Shape>
void Emulate(const RaggedProduct<BFloat16>& p, uint64_t seed = 1) {
  constexpr LinesAlong kK = LinesAlong::kK, kAcross = LinesAlong::kAcross;
  const Grid grid = {
      .blocks = BlocksOf<Shape>(p),
      .threads = Shape::kThreads,
      .shared_bytes = p.transposed
                          ? TileProduct<Shape, kK, kK>::kSharedBytes
                          : TileProduct<Shape, kK, kAcross>::kSharedBytes,
      .seed = seed};
  RunBlocks(grid, [&] {
    p.transposed ? RaggedProductBlock<Shape, kK>(p)
                 : RaggedProductBlock<Shape, kAcross>(p);
  });
}

template <typename Shape>
void Emulate(const RaggedProduct<int8_t>& p, uint64_t seed = 1) {
  RunBlocks({.blocks = BlocksOf<Shape>(p),
             .threads = Shape::kThreads,
             .shared_bytes = Int8Product<Shape>::kSharedBytes,
             .seed = seed},
            [&] { RaggedProductBlock<Shape>(p); });
}

inline void Emulate(const RaggedProduct<float>& p, uint64_t seed = 1) {
  RunBlocks({.blocks = BlocksOf<FloatTile>(p),
             .threads = FloatTile::kThreads,
             .shared_bytes = FloatTile::kSharedBytes,
             .seed = seed},
            [&] { RaggedProductBlock(p); });
}

inline void Emulate(const RaggedWeightsGradient<BFloat16>& g,
                    uint64_t seed = 1) {
  constexpr LinesAlong kAcross = LinesAlong::kAcross;
  RunBlocks(
      {.blocks = BlocksOf<LargeTile>(g),
       .threads = LargeTile::kThreads,
       .shared_bytes = TileProduct<LargeTile, kAcross, kAcross>::kSharedBytes,
       .seed = seed},
      [&] { RaggedWeightsGradientBlock<LargeTile>(g); });
}

inline void Emulate(const RaggedWeightsGradient<float>& g, uint64_t seed = 1) {
  RunBlocks({.blocks = BlocksOf<FloatTile>(g),
             .threads = FloatTile::kThreads,
             .shared_bytes = FloatTile::kSharedBytes,
             .seed = seed},
            [&] { RaggedWeightsGradientBlock(g); });
}

inline void Emulate(const RaggedBiasAdd& add) {
  RunBlocks({.blocks = add.num_tiles, .threads = kElementThreads},
            [&] { RaggedBiasAddBlock(add); });
}

inline void Emulate(const RaggedBiasGradient& g) {
  RunBlocks({.blocks = BlocksOf(g), .threads = kElementThreads},
            [&] { RaggedBiasGradientBlock(g); });
}

template <typename Function>
void Emulate(const RowSums<Function>& s, uint64_t seed = 1) {
  RunBlocks({.blocks = BlocksOf(s),
             .threads = kElementThreads,
             .shared_bytes = kSumSharedBytes,
             .seed = seed},
            [&] { RowSumsBlock(s); });
}

inline void Emulate(const ApplyUpdate& apply) {
  RunBlocks({.blocks = BlocksOf(apply), .threads = kElementThreads},
            [&] { ApplyUpdateBlock(apply); });
}

// With at most two blocks, so that threads process several elements.
template <typename Function>
void EmulateElements(const Function& function, int64_t size) {
  RunBlocks({.blocks = std::min<int64_t>(2, BlocksAlong(size, kElementThreads)),
             .threads = kElementThreads},
            [&] { ElementsBlock(function, size); });
}

template <typename Function>
void EmulateRows(const Function& function, int64_t rows) {
  RunBlocks({.blocks = std::min<int64_t>(2, BlocksAlong(rows, kRowsOfBlock)),
             .threads = kElementThreads},
            [&] { RowsBlock(function, rows); });
}

template <int kChunks>
Grid AttentionGrid(const AttentionOperands& operands, int64_t rows,
                   uint64_t seed) {
  return {.blocks = AttentionBlocks(operands, rows),
          .threads = AttentionTile<kChunks>::kThreads,
          .shared_bytes = AttentionTile<kChunks>::kSharedBytes,
          .seed = seed};
}

inline void Emulate(const AttentionForward& f, uint64_t seed = 1) {
  ByHeadWidth(f.operands.width, [&]<int kChunks>() {
    RunBlocks(AttentionGrid<kChunks>(f.operands, f.operands.mask.queries, seed),
              [&] { AttentionForwardBlock<kChunks>(f); });
  });
}

inline void Emulate(const AttentionBackward& g, uint64_t seed = 1) {
  const AttentionMask& mask = g.operands.mask;
  ByHeadWidth(g.operands.width, [&]<int kChunks>() {
    RunBlocks(AttentionGrid<kChunks>(g.operands, mask.queries, seed),
              [&] { AttentionQueriesGradientBlock<kChunks>(g); });
    RunBlocks(AttentionGrid<kChunks>(g.operands, mask.keys, seed),
              [&] { AttentionKeysGradientBlock<kChunks>(g); });
  });
}

}  // namespace gshard::cuda

#endif  // TESTS_SERVICES_CUDA_EMULATED_KERNELS_H_
