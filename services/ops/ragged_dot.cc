#include "services/ops/ragged_dot.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/base/check.h"
#include "services/base/parallel.h"
#include "services/ops/elementwise.h"
#include "services/ops/int8_panel.h"
#include "services/ops/matmul.h"
#include "services/ops/panel.h"

namespace gshard {
namespace {

// Gradients of at least this many bytes are written past the caches. A model
// has several of them, so they would have left the caches by the time all are
// complete and read, and normal stores would first load the overwritten lines
// from memory.
constexpr size_t kStreamedBytes = size_t{4} << 20;

// Calls `visit(group, first row, number of rows)` for each group.
template <typename Visit>
void ForEachGroup(const Tensor& group_sizes, int64_t num_rows, Visit visit) {
  int64_t begin = 0;
  for (int64_t e = 0; e < group_sizes.size(); ++e) {
    const int64_t size = group_sizes.i32()[e];
    CHECK(size >= 0 && begin + size <= num_rows);
    visit(e, begin, size);
    begin += size;
  }
  CHECK(begin == num_rows);
}

// The product of one group: its shape, and the offsets of its elements in a, b
// and the result.
struct Product {
  MatmulShape shape;
  int64_t a, b, c;
};

// Tiles that a thread takes at a time. Tiles that follow each other have
// weights that do, too, which a product prefetches (panel_blocks.h). Few of
// many, so that all threads end together.
int64_t TilesAtATime(size_t tiles) {
  return std::clamp<int64_t>(tiles / 16, 1, 4);
}

// Calls `multiply(product, tile)` for all tiles of all products.
template <typename Multiply>
void ForEachTile(const std::vector<Product>& products, Multiply multiply) {
  std::vector<std::pair<const Product*, int64_t>> tiles;
  for (const Product& product : products) {
    const int64_t count = MatmulTiles(product.shape);
    for (int64_t i = 0; i < count; ++i) tiles.emplace_back(&product, i);
  }
  ParallelForChunks(static_cast<int64_t>(tiles.size()),
                    TilesAtATime(tiles.size()), [&](int64_t i, int64_t end) {
                      for (; i < end; ++i) {
                        multiply(*tiles[i].first, tiles[i].second);
                      }
                    });
}

// Computes all products; elements are float32 or bfloat16.
void MultiplyAll(const std::vector<Product>& products, const Tensor& a,
                 const Tensor& b, float* c) {
  CHECK(a.type() == b.type());
  ForEachTile(products, [&](const Product& product, int64_t tile) {
    if (a.type() == ElementType::kBFloat16) {
      MatmulTile(product.shape, tile, a.data<BFloat16>() + product.a,
                 ElementsOf<BFloat16>(b) + product.b, c + product.c);
    } else {
      MatmulTile(product.shape, tile, a.f32() + product.a,
                 ElementsOf<float>(b) + product.b, c + product.c);
    }
  });
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
  const bool is_int8 = weights.type() == ElementType::kInt8;
  const bool in_panels = !is_int8 && weights.panel_rows() > 0;
  CHECK(weights.panel_rows() == (is_int8 || in_panels ? m : 0));
  Tensor result(ElementType::kFloat32, {num_rows, h});
  std::vector<Product> products;
  ForEachGroup(
      group_sizes, num_rows, [&](int64_t e, int64_t begin, int64_t size) {
        const MatmulShape shape{
            .m = size, .n = h, .k = m, .b_in_panels = in_panels};
        products.push_back(
            {.shape = shape, .a = begin * m, .b = e * m * h, .c = begin * h});
      });
  if (is_int8) {
    const Int8Rows rounded(rows.f32(), num_rows, m);
    ForEachTile(products, [&](const Product& product, int64_t tile) {
      MatmulTile(product.shape, tile, rounded, product.a / m,
                 weights.panels<int8_t>() +
                     product.b / (m * h) * Int8MatrixBytes(m, h),
                 result.f32() + product.c);
    });
  } else {
    MultiplyAll(products, rows, weights, result.f32());
  }
  return result;
}

Tensor RaggedDotRowsGradient(const Tensor& dresult, const Tensor& weights,
                             const Tensor& group_sizes) {
  const int64_t num_rows = dresult.dim(0);
  const int64_t m = weights.dim(1), h = weights.dim(2);
  CHECK(dresult.dim(1) == h && weights.dim(0) == group_sizes.size());
  Tensor drows(ElementType::kFloat32, {num_rows, m});
  std::vector<Product> products;
  ForEachGroup(group_sizes, num_rows,
               [&](int64_t e, int64_t begin, int64_t size) {
                 products.push_back(
                     {.shape = {.m = size, .n = m, .k = h, .transpose_b = true},
                      .a = begin * h,
                      .b = e * m * h,
                      .c = begin * m});
               });
  MultiplyAll(products, dresult, weights, drows.f32());
  return drows;
}

Tensor RaggedDotWeightsGradient(const Tensor& rows, const Tensor& dresult,
                                const Tensor& group_sizes) {
  const int64_t num_rows = rows.dim(0), m = rows.dim(1), h = dresult.dim(1);
  CHECK(dresult.dim(0) == num_rows);
  const Dims dims{group_sizes.size(), m, h};
  const bool streams = NumElements(dims) * sizeof(float) >= kStreamedBytes;
  // Of many experts, few may have rows. The time should depend on these only,
  // so the zero gradients of the others are not written.
  std::vector<bool> has_rows(group_sizes.size());
  for (int64_t e = 0; e < group_sizes.size(); ++e) {
    has_rows[e] = group_sizes.i32()[e] > 0;
  }
  const bool all_have =
      std::find(has_rows.begin(), has_rows.end(), false) == has_rows.end();
  Tensor dweights =
      all_have || !streams
          ? Tensor(ElementType::kFloat32, dims)
          : Tensor::ZeroRows(ElementType::kFloat32, dims, std::move(has_rows));
  std::vector<Product> products;
  ForEachGroup(group_sizes, num_rows,
               [&](int64_t e, int64_t begin, int64_t size) {
                 if (dweights.IsZeroRow(e)) return;
                 products.push_back({.shape = {.m = m,
                                               .n = h,
                                               .k = size,
                                               .transpose_a = true,
                                               .streams = streams},
                                     .a = begin * m,
                                     .b = begin * h,
                                     .c = e * m * h});
               });
  MultiplyAll(products, rows, dresult, dweights.f32());
  return dweights;
}

Tensor RaggedBiasAdd(Tensor rows, const Tensor& bias,
                     const Tensor& group_sizes) {
  const int64_t num_rows = rows.dim(0), h = rows.dim(1);
  CHECK(bias.dim(0) == group_sizes.size() && bias.dim(1) == h);
  Tensor result = rows.unique() ? rows : Tensor(rows.type(), rows.dims());
  std::vector<int64_t> group_of_row(num_rows);
  ForEachGroup(group_sizes, num_rows,
               [&](int64_t e, int64_t begin, int64_t size) {
                 std::fill_n(group_of_row.begin() + begin, size, e);
               });
  ParallelForChunks(num_rows, ChunkSize(h), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      AddRow(rows.f32() + r * h, bias.f32() + group_of_row[r] * h,
             result.f32() + r * h, h);
    }
  });
  return result;
}

Tensor RaggedBiasGradient(const Tensor& dresult, const Tensor& group_sizes) {
  const int64_t num_rows = dresult.dim(0), h = dresult.dim(1);
  Tensor dbias = Tensor::Zeros(ElementType::kFloat32, {group_sizes.size(), h});
  std::vector<int64_t> ends;
  ForEachGroup(group_sizes, num_rows,
               [&](int64_t, int64_t begin, int64_t size) {
                 ends.push_back(begin + size);
               });
  ParallelFor(group_sizes.size(), [&](int64_t e) {
    float* const sum = dbias.f32() + e * h;
    for (int64_t r = e == 0 ? 0 : ends[e - 1]; r < ends[e]; ++r) {
      AddRow(sum, dresult.f32() + r * h, sum, h);
    }
  });
  return dbias;
}

}  // namespace gshard
