// Splits a product with a panel, up to 48 columns of b, into blocks of c whose
// sums stay in registers.

#ifndef SERVICES_OPS_PANEL_BLOCKS_H_
#define SERVICES_OPS_PANEL_BLOCKS_H_

#include <algorithm>
#include <cstdint>
#include <utility>

#include "services/ops/panel.h"

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

}  // namespace gshard

#endif  // SERVICES_OPS_PANEL_BLOCKS_H_
