// How products with a panel, 48 columns of b or fewer, are divided into blocks
// of c whose sums stay in registers.

#ifndef SERVICES_OPS_PANEL_BLOCKS_H_
#define SERVICES_OPS_PANEL_BLOCKS_H_

#include <algorithm>
#include <cstdint>
#include <utility>

#include "services/ops/panel.h"

// In front of each loop over sums: those of a loop that is not unrolled are in
// memory.
#ifdef __clang__
#define GSHARD_UNROLL _Pragma("unroll")
#else
#define GSHARD_UNROLL _Pragma("GCC unroll 8")
#endif

namespace gshard {

// Rows of c whose sums are in registers at the same time: 24 of the 32.
inline constexpr int64_t kBlockRows = 8;

// Of a panel with n columns, in vectors of 16.
constexpr int64_t VectorsOf(int64_t n) {
  return (std::min(n, kPanelColumns) + 15) / 16;
}

// Of the columns from 16 * `vector` on, those that are below `n`.
constexpr uint16_t ColumnMask(int64_t n, int64_t vector) {
  return (1u << std::clamp<int64_t>(n - 16 * vector, 0, 16)) - 1;
}

// For m rows and n columns calls block<rows, vectors>(first row).
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
