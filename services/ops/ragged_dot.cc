#include "services/ops/ragged_dot.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "services/base/check.h"
#include "services/ops/elementwise.h"
#include "services/ops/matmul.h"

namespace gshard {
namespace {

// Calls `visit(group, first row, number of rows)` for each group with rows.
template <typename Visit>
void ForEachGroup(const Tensor& group_sizes, int64_t num_rows, Visit visit) {
  int64_t begin = 0;
  for (int64_t e = 0; e < group_sizes.size(); ++e) {
    const int64_t size = group_sizes.i32()[e];
    CHECK(size >= 0 && begin + size <= num_rows);
    if (size > 0) visit(e, begin, size);
    begin += size;
  }
  CHECK(begin == num_rows);
}

// op(a) op(b) of elements of either type, from element `i` of a and `j` of b.
void MatmulFrom(const MatmulShape& shape, const Tensor& a, int64_t i,
                const Tensor& b, int64_t j, float* c) {
  CHECK(a.type() == b.type());
  if (a.type() == ElementType::kBFloat16) {
    Matmul(shape, a.data<BFloat16>() + i, b.data<BFloat16>() + j, c);
  } else {
    Matmul(shape, a.f32() + i, b.f32() + j, c);
  }
}

}  // namespace

absl::Status CheckGroupSizes(const Tensor& group_sizes, int64_t num_rows) {
  int64_t sum = 0;
  for (int64_t e = 0; e < group_sizes.size(); ++e) {
    const int64_t size = group_sizes.i32()[e];
    if (size < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("group size ", e, ": expected at least 0, got ", size));
    }
    sum += size;
  }
  if (sum != num_rows) {
    return absl::InvalidArgumentError(absl::StrCat(
        "group sizes: expected the sum ", num_rows, ", got ", sum));
  }
  return absl::OkStatus();
}

Tensor RaggedDot(const Tensor& rows, const Tensor& weights,
                 const Tensor& group_sizes) {
  const int64_t num_rows = rows.dim(0), m = rows.dim(1), h = weights.dim(2);
  CHECK(weights.dim(1) == m && weights.dim(0) == group_sizes.size());
  Tensor result(ElementType::kFloat32, {num_rows, h});
  ForEachGroup(group_sizes, num_rows,
               [&](int64_t e, int64_t begin, int64_t size) {
                 MatmulFrom({.m = size, .n = h, .k = m}, rows, begin * m,
                            weights, e * m * h, result.f32() + begin * h);
               });
  return result;
}

Tensor RaggedDotRowsGradient(const Tensor& dresult, const Tensor& weights,
                             const Tensor& group_sizes) {
  const int64_t num_rows = dresult.dim(0);
  const int64_t m = weights.dim(1), h = weights.dim(2);
  CHECK(dresult.dim(1) == h && weights.dim(0) == group_sizes.size());
  Tensor drows(ElementType::kFloat32, {num_rows, m});
  ForEachGroup(
      group_sizes, num_rows, [&](int64_t e, int64_t begin, int64_t size) {
        MatmulFrom({.m = size, .n = m, .k = h, .transpose_b = true}, dresult,
                   begin * h, weights, e * m * h, drows.f32() + begin * m);
      });
  return drows;
}

Tensor RaggedDotWeightsGradient(const Tensor& rows, const Tensor& dresult,
                                const Tensor& group_sizes) {
  const int64_t num_rows = rows.dim(0), m = rows.dim(1), h = dresult.dim(1);
  CHECK(dresult.dim(0) == num_rows);
  Tensor dweights(ElementType::kFloat32, {group_sizes.size(), m, h});
  for (int64_t e = 0; e < group_sizes.size(); ++e) {
    if (group_sizes.i32()[e] == 0) {
      std::fill_n(dweights.f32() + e * m * h, m * h, 0.0f);
    }
  }
  ForEachGroup(
      group_sizes, num_rows, [&](int64_t e, int64_t begin, int64_t size) {
        MatmulFrom({.m = m, .n = h, .k = size, .transpose_a = true}, rows,
                   begin * m, dresult, begin * h, dweights.f32() + e * m * h);
      });
  return dweights;
}

Tensor RaggedBiasAdd(Tensor rows, const Tensor& bias,
                     const Tensor& group_sizes) {
  const int64_t num_rows = rows.dim(0), h = rows.dim(1);
  CHECK(bias.dim(0) == group_sizes.size() && bias.dim(1) == h);
  Tensor result = rows.unique() ? rows : Tensor(rows.type(), rows.dims());
  ForEachGroup(group_sizes, num_rows,
               [&](int64_t e, int64_t begin, int64_t size) {
                 for (int64_t r = begin; r < begin + size; ++r) {
                   AddRow(rows.f32() + r * h, bias.f32() + e * h,
                          result.f32() + r * h, h);
                 }
               });
  return result;
}

Tensor RaggedBiasGradient(const Tensor& dresult, const Tensor& group_sizes) {
  const int64_t num_rows = dresult.dim(0), h = dresult.dim(1);
  Tensor dbias = Tensor::Zeros(ElementType::kFloat32, {group_sizes.size(), h});
  ForEachGroup(group_sizes, num_rows,
               [&](int64_t e, int64_t begin, int64_t size) {
                 float* sum = dbias.f32() + e * h;
                 for (int64_t r = begin; r < begin + size; ++r) {
                   AddRow(sum, dresult.f32() + r * h, sum, h);
                 }
               });
  return dbias;
}

}  // namespace gshard
