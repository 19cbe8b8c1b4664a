// Splits a product with a panel, up to 48 columns of b, into blocks of c whose
// sums stay in registers.

#ifndef SERVICES_OPS_PANEL_BLOCKS_H_
#define SERVICES_OPS_PANEL_BLOCKS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "services/ops/panel_layout.h"

// Put in front of each loop over sums: if such a loop is not unrolled, the sums
// are in memory.
#ifdef __clang__
#define GSHARD_UNROLL _Pragma("unroll")
#else
#define GSHARD_UNROLL _Pragma("GCC unroll 8")
#endif

namespace gshard {

// Rows of c per block: with 3 vectors each, their sums take 24 of 32 registers.
inline constexpr int64_t kBlockRows = 8;

// Vectors of 16 columns in a panel with n columns.
constexpr int64_t VectorsOf(int64_t n) {
  return (std::min(n, kPanelColumns) + 15) / 16;
}

// Mask of those columns from 16 * `vector` on that are below `n`.
constexpr uint16_t ColumnMask(int64_t n, int64_t vector) {
  return (1u << std::clamp<int64_t>(n - 16 * vector, 0, 16)) - 1;
}

// What a block prefetches: the lines of the next panel, a few per step of k,
// while the panel at hand is in the caches. Otherwise the first block of each
// panel waits for memory, and no other block uses it. A panel's step is three
// vectors in all types, hence three lines, which are divided among the first
// full blocks; narrow panels and rows without a full block prefetch nothing.
struct Prefetch {
  const std::byte* line = nullptr;
  int lines = 0;  // per step of k

  // For the block of rows from `r` of m, with `steps` steps of k; `next`: the
  // next panel, or null.
  static Prefetch ForBlock(const void* next, int64_t steps, int64_t m,
                           int64_t r) {
    constexpr int kLines = 3;
    const int64_t blocks = std::min<int64_t>(m / kBlockRows, kLines);
    const int64_t block = r / kBlockRows;
    if (next == nullptr || block >= blocks) return {};
    const auto begin = [=](int64_t b) {
      return (b * kLines + blocks - 1) / blocks;
    };
    return {
        .line = static_cast<const std::byte*>(next) + begin(block) * steps * 64,
        .lines = static_cast<int>(begin(block + 1) - begin(block))};
  }
};

// Calls block<rows, vectors>(first row) for all blocks of m rows and n columns.
template <typename Block>
void ForEachBlock(int64_t m, int64_t n, const Block& block) {
  const auto for_width = [&]<int kVectors>() {
    for (int64_t r = 0; r < m; r += kBlockRows) {
      const int64_t rows = std::min(kBlockRows, m - r);
      const auto call = [&]<int... kBefore>(
          std::integer_sequence<int, kBefore...>) {
        ((rows == kBefore + 1
              ? block.template operator()<kBefore + 1, kVectors>(r)
              : void()),
         ...);
      };
      call(std::make_integer_sequence<int, kBlockRows>());
    }
  };
  switch (VectorsOf(n)) {
    case 1:
      return for_width.template operator()<1>();
    case 2:
      return for_width.template operator()<2>();
    default:
      return for_width.template operator()<3>();
  }
}

// The same, but calls block<rows, vectors, lines>(first row, line), to prefetch
// `lines` lines from `line` on per step: see Prefetch.
template <typename Block>
void ForEachBlock(int64_t m, int64_t n, int64_t steps, const void* next,
                  const Block& block) {
  ForEachBlock(m, n, [&]<int kRows, int kVectors>(int64_t r) {
    if constexpr (kRows == kBlockRows && kVectors == 3) {
      const auto [line, lines] = Prefetch::ForBlock(next, steps, m, r);
      switch (lines) {
        case 1:
          return block.template operator()<kRows, kVectors, 1>(r, line);
        case 2:
          return block.template operator()<kRows, kVectors, 2>(r, line);
        case 3:
          return block.template operator()<kRows, kVectors, 3>(r, line);
      }
    }
    block.template operator()<kRows, kVectors, 0>(r, nullptr);
  });
}

}  // namespace gshard

#endif  // SERVICES_OPS_PANEL_BLOCKS_H_
