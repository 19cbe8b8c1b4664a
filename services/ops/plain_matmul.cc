#include "services/ops/plain_matmul.h"

#include <algorithm>
#include <vector>

#include "services/ops/avx2_panel.h"
#include "services/ops/cpu_isa.h"
#include "services/ops/panel.h"

namespace gshard {
namespace {

// Columns of b that are packed at a time: enough that b is read nearly in the
// order of memory, and few enough that the level 2 cache holds them.
constexpr int64_t kColumns = kPanelColumns;

// Rows [0, rows) and columns [0, columns) of `from`, with rows `stride` floats
// apart in `to`.
void Pack(int64_t rows, int64_t columns, const TileOperand& from, float* to,
          int64_t stride) {
  if (from.column_stride == 1) {
    for (int64_t i = 0; i < rows; ++i) {
      std::copy_n(from.data + i * from.row_stride, columns, to + i * stride);
    }
    return;
  }
  for (int64_t j = 0; j < columns; ++j) {
    const float* const column = from.data + j * from.column_stride;
    for (int64_t i = 0; i < rows; ++i) {
      to[i * stride + j] = column[i * from.row_stride];
    }
  }
}

TileOperand At(const TileOperand& operand, int64_t row, int64_t column) {
  return {
      operand.data + row * operand.row_stride + column * operand.column_stride,
      operand.row_stride, operand.column_stride};
}

}  // namespace

void PlainMatmul(int64_t m, int64_t n, int64_t k, TileOperand a, TileOperand b,
                 float* c, int64_t c_stride, bool accumulate, int64_t depth) {
  thread_local std::vector<float> rows, panel, sums;
  for (int64_t l = 0; l < k; l += depth, accumulate = true) {
    const int64_t steps = std::min(depth, k - l);
    TileOperand block = At(a, 0, l);
    if (a.column_stride != 1 || m >= kFewRows) {
      // Rows a large power of two apart would share few lines of the cache.
      const int64_t stride = steps + 16;
      rows.resize(m * stride);
      Pack(m, steps, block, rows.data(), stride);
      block = {rows.data(), stride, 1};
    }
    for (int64_t j = 0; j < n; j += kColumns) {
      const int64_t columns = std::min(kColumns, n - j);
      const int64_t padded = PadToTile(columns);
      panel.resize(steps * padded);
      if (padded > columns) std::fill(panel.begin(), panel.end(), 0.0f);
      Pack(steps, columns, At(b, l, j), panel.data(), padded);
      if (HasAvx2()) {
        MultiplyAvx2Panel(m, columns, steps, block.data, block.row_stride,
                          /*step=*/1, panel.data(), c + j, c_stride,
                          accumulate);
        continue;
      }
      sums.resize(m * padded);
      TileMatmul(m, padded, steps, block, panel.data(), padded, sums.data(),
                 padded);
      for (int64_t i = 0; i < m; ++i) {
        float* const to = c + i * c_stride + j;
        const float* const sum = sums.data() + i * padded;
        for (int64_t x = 0; x < columns; ++x) {
          to[x] = accumulate ? to[x] + sum[x] : sum[x];
        }
      }
    }
  }
}

}  // namespace gshard
