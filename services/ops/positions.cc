#include "services/ops/positions.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "services/base/check.h"

namespace gshard {
namespace {

// Each thread caches the vectors of positions up to this one: the same few
// hundred recur in every batch.
constexpr int64_t kMaxCachedPosition = 4096;

void FillRow(int64_t position, int64_t width, float* row) {
  const int64_t half = width / 2;
  const double step =
      -std::log(10000.0) / static_cast<double>(std::max<int64_t>(half - 1, 1));
  for (int64_t i = 0; i < half; ++i) {
    const double angle =
        static_cast<double>(position) * std::exp(step * static_cast<double>(i));
    row[i] = static_cast<float>(std::sin(angle));
    row[half + i] = static_cast<float>(std::cos(angle));
  }
  if (width % 2 == 1) row[width - 1] = 0.0f;
}

struct PositionTable {
  int64_t width = 0;
  std::vector<float> rows;  // [positions so far, width]

  void Cover(int64_t last_position, int64_t new_width) {
    if (width != new_width) {
      width = new_width;
      rows.clear();
    }
    const int64_t have = static_cast<int64_t>(rows.size()) / width;
    if (have > last_position) return;
    rows.resize((last_position + 1) * width);
    for (int64_t p = have; p <= last_position; ++p) {
      FillRow(p, width, rows.data() + p * width);
    }
  }
};

}  // namespace

Tensor SinusoidalPositions(const Tensor& positions, int64_t width) {
  CHECK(width >= 0);
  Dims dims = positions.dims();
  dims.push_back(width);
  Tensor result(ElementType::kFloat32, dims);
  if (result.size() == 0) return result;

  int64_t last_cached = -1;
  for (const int32_t position : positions.span<int32_t>()) {
    if (position < kMaxCachedPosition) {
      last_cached = std::max<int64_t>(last_cached, position);
    }
  }
  thread_local PositionTable table;
  if (last_cached >= 0) table.Cover(last_cached, width);
  for (int64_t i = 0; i < positions.size(); ++i) {
    const int64_t position = positions.i32()[i];
    float* row = result.f32() + i * width;
    if (position >= 0 && position < kMaxCachedPosition) {
      std::memcpy(row, table.rows.data() + position * width,
                  width * sizeof(float));
    } else {
      FillRow(position, width, row);
    }
  }
  return result;
}

}  // namespace gshard
