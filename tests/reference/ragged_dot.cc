#include "tests/reference/ragged_dot.h"

#include <vector>

#include "tests/reference/cast.h"

namespace gshard::reference {
namespace {

std::vector<int64_t> GroupOfRow(const Tensor& group_sizes) {
  std::vector<int64_t> groups;
  for (int64_t e = 0; e < group_sizes.size(); ++e) {
    groups.insert(groups.end(), group_sizes.i32()[e], e);
  }
  return groups;
}

Tensor Wide(const Tensor& x) {
  return reference::Cast(x, ElementType::kFloat32);
}

}  // namespace

Tensor RaggedDot(const Tensor& rows, const Tensor& weights,
                 const Tensor& group_sizes) {
  const std::vector<int64_t> groups = GroupOfRow(group_sizes);
  const int64_t num_rows = rows.dim(0), m = rows.dim(1), h = weights.dim(2);
  std::vector<double> sums(num_rows * h, 0.0);
  const Tensor a = Wide(rows), b = Wide(weights);
  for (int64_t r = 0; r < num_rows; ++r) {
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < h; ++j) {
        sums[r * h + j] += static_cast<double>(a.f32()[r * m + i]) *
                           b.f32()[(groups[r] * m + i) * h + j];
      }
    }
  }
  return FromDoubles({num_rows, h}, sums);
}

Tensor RaggedDotRowsGradient(const Tensor& dresult, const Tensor& weights,
                             const Tensor& group_sizes) {
  const std::vector<int64_t> groups = GroupOfRow(group_sizes);
  const int64_t num_rows = dresult.dim(0);
  const int64_t m = weights.dim(1), h = weights.dim(2);
  std::vector<double> sums(num_rows * m, 0.0);
  const Tensor a = Wide(dresult), b = Wide(weights);
  for (int64_t r = 0; r < num_rows; ++r) {
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < h; ++j) {
        sums[r * m + i] += static_cast<double>(a.f32()[r * h + j]) *
                           b.f32()[(groups[r] * m + i) * h + j];
      }
    }
  }
  return FromDoubles({num_rows, m}, sums);
}

Tensor RaggedDotWeightsGradient(const Tensor& rows, const Tensor& dresult,
                                const Tensor& group_sizes) {
  const std::vector<int64_t> groups = GroupOfRow(group_sizes);
  const int64_t num_rows = rows.dim(0), m = rows.dim(1), h = dresult.dim(1);
  std::vector<double> sums(group_sizes.size() * m * h, 0.0);
  const Tensor a = Wide(rows), b = Wide(dresult);
  for (int64_t r = 0; r < num_rows; ++r) {
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < h; ++j) {
        sums[(groups[r] * m + i) * h + j] +=
            static_cast<double>(a.f32()[r * m + i]) * b.f32()[r * h + j];
      }
    }
  }
  return FromDoubles({group_sizes.size(), m, h}, sums);
}

Tensor RaggedBiasAdd(const Tensor& rows, const Tensor& bias,
                     const Tensor& group_sizes) {
  const std::vector<int64_t> groups = GroupOfRow(group_sizes);
  const int64_t h = rows.dim(1);
  Tensor result(ElementType::kFloat32, rows.dims());
  for (int64_t i = 0; i < rows.size(); ++i) {
    result.f32()[i] = rows.f32()[i] + bias.f32()[groups[i / h] * h + i % h];
  }
  return result;
}

Tensor RaggedBiasGradient(const Tensor& dresult, const Tensor& group_sizes) {
  const std::vector<int64_t> groups = GroupOfRow(group_sizes);
  const int64_t h = dresult.dim(1);
  std::vector<double> sums(group_sizes.size() * h, 0.0);
  for (int64_t i = 0; i < dresult.size(); ++i) {
    sums[groups[i / h] * h + i % h] += dresult.f32()[i];
  }
  return FromDoubles({group_sizes.size(), h}, sums);
}

}  // namespace gshard::reference
