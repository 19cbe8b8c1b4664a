#include "services/ops/attention.h"

#include <algorithm>
#include <vector>

#include "services/base/check.h"
#include "services/base/parallel.h"
#include "services/base/random.h"
#include "services/ops/dropout_mask.h"
#include "services/ops/simd.h"
#include "services/ops/softmax.h"
#include "services/ops/tile_matmul.h"

namespace gshard {
namespace {

// Sizes of one call, and the layout of a head: row l of head n of sentence b
// begins at ((b * length + l) * heads + n) * width.
struct Sizes {
  int64_t batch, queries, keys, heads, width;
  int64_t stride;        // between rows of a head
  int64_t padded_width;  // width, rounded up to whole tiles
  int64_t padded_keys;   // keys, rounded up to whole tiles

  Sizes(const Tensor& q, const Tensor& k)
      : batch(q.dim(0)),
        queries(q.dim(1)),
        keys(k.dim(1)),
        heads(q.dim(2)),
        width(q.dim(3)),
        stride(heads * width),
        padded_width(PadToTile(width)),
        padded_keys(PadToTile(keys)) {}

  int64_t Query(int64_t b, int64_t n) const {
    return (b * queries * heads + n) * width;
  }
  int64_t Key(int64_t b, int64_t n) const {
    return (b * keys * heads + n) * width;
  }
  int64_t Statistics(int64_t b, int64_t n, int64_t i) const {
    return ((b * heads + n) * queries + i) * 2;
  }
};

// The number of keys, of `length`, that query i sees.
int64_t VisibleKeys(const Sizes& sizes, const AttentionOptions& options,
                    int64_t length, int64_t i) {
  if (!options.causal) return length;
  const int64_t queries =
      options.all_queries > 0 ? options.all_queries : sizes.queries;
  return std::clamp<int64_t>(options.first_query + i + 1 + sizes.keys - queries,
                             0, length);
}

GSHARD_SIMD void DropRow(float* x, int64_t size, DropoutMask mask) {
#pragma omp simd
  for (int64_t j = 0; j < size; ++j) x[j] *= mask.Factor(j);
}

DropoutMask MaskOfRow(const AttentionOptions& options, int64_t b, int64_t n,
                      int64_t i) {
  const uint64_t key =
      FoldIn(FoldIn(FoldIn(options.dropout_key, options.first_sentence + b),
                    options.first_head + n),
             options.first_query + i);
  return DropoutMask(options.dropout_rate, key);
}

// In place: turns the gradient of a row of probabilities into that of its
// logits, through softmax and scale.
GSHARD_SIMD void SoftmaxGradientRow(const float* probabilities, float* dx,
                                    int64_t visible, int64_t padded,
                                    float scale) {
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < visible; ++j) sum += probabilities[j] * dx[j];
#pragma omp simd
  for (int64_t j = 0; j < visible; ++j) {
    dx[j] = scale * probabilities[j] * (dx[j] - sum);
  }
  for (int64_t j = visible; j < padded; ++j) dx[j] = 0.0f;
}

// Copies [rows, width], rows `stride` apart, to contiguous rows padded with
// zeros to padded_width.
void Pack(const float* x, int64_t rows, int64_t stride, int64_t width,
          int64_t padded_width, float* out) {
  for (int64_t r = 0; r < rows; ++r, x += stride, out += padded_width) {
    std::copy_n(x, width, out);
    std::fill(out + width, out + padded_width, 0.0f);
  }
}

// The rows of a head as the second operand of TileMatmul, packed: in place
// their stride is a power of two, so they would compete for a few cache sets.
struct Rows {
  const float* data;
  int64_t stride;

  Rows(const float* x, int64_t rows, const Sizes& sizes,
       std::vector<float>& buffer)
      : stride(sizes.padded_width) {
    buffer.resize(rows * stride);
    Pack(x, rows, sizes.stride, sizes.width, stride, buffer.data());
    data = buffer.data();
  }
};

using Float4 = float __attribute__((vector_size(16), aligned(4), may_alias));

// Writes the transpose of a [4, 4] block with rows `stride` apart.
inline void Transpose4x4(const float* x, int64_t stride, float* out,
                         int64_t out_stride) {
  const auto row = [&](int64_t r) {
    return *reinterpret_cast<const Float4*>(x + r * stride);
  };
  const Float4 low01 = __builtin_shufflevector(row(0), row(1), 0, 4, 1, 5);
  const Float4 low23 = __builtin_shufflevector(row(2), row(3), 0, 4, 1, 5);
  const Float4 high01 = __builtin_shufflevector(row(0), row(1), 2, 6, 3, 7);
  const Float4 high23 = __builtin_shufflevector(row(2), row(3), 2, 6, 3, 7);
  const auto column = [&](int64_t c) -> Float4& {
    return *reinterpret_cast<Float4*>(out + c * out_stride);
  };
  column(0) = __builtin_shufflevector(low01, low23, 0, 1, 4, 5);
  column(1) = __builtin_shufflevector(low01, low23, 2, 3, 6, 7);
  column(2) = __builtin_shufflevector(high01, high23, 0, 1, 4, 5);
  column(3) = __builtin_shufflevector(high01, high23, 2, 3, 6, 7);
}

// Writes the transpose [width, padded_rows] of [rows, width] with rows `stride`
// apart. Columns from `rows` on are left as they are.
void PackTransposed(const float* x, int64_t rows, int64_t stride, int64_t width,
                    int64_t padded_rows, float* out) {
  const int64_t whole = width / 4 * 4;
  const auto copy = [&](int64_t r, int64_t i) {
    out[i * padded_rows + r] = x[r * stride + i];
  };
  int64_t r = 0;
  while (r + 4 <= rows) {
    for (int64_t i = 0; i < whole; i += 4) {
      Transpose4x4(x + r * stride + i, stride, out + i * padded_rows + r,
                   padded_rows);
    }
    for (int64_t j = r; j < r + 4; ++j) {
      for (int64_t i = whole; i < width; ++i) copy(j, i);
    }
    // The last block of four overlaps the one before.
    r = r + 4 < rows ? std::min(r + 4, rows - 4) : rows;
  }
  for (; r < rows; ++r) {
    for (int64_t i = 0; i < width; ++i) copy(r, i);
  }
}

// out [m, width] (rows sizes.stride apart) = a b. Goes through `buffer` if
// whole tiles would write beyond the row.
void MatmulToRows(int64_t m, int64_t k, TileOperand a, const Rows& b,
                  const Sizes& sizes, std::vector<float>& buffer, float* out) {
  if (sizes.width == sizes.padded_width) {
    TileMatmul(m, sizes.width, k, a, b.data, b.stride, out, sizes.stride);
    return;
  }
  buffer.resize(m * sizes.padded_width);
  TileMatmul(m, sizes.padded_width, k, a, b.data, b.stride, buffer.data(),
             sizes.padded_width);
  for (int64_t r = 0; r < m; ++r) {
    std::copy_n(buffer.data() + r * sizes.padded_width, sizes.width,
                out + r * sizes.stride);
  }
}

// The same, added to what is in out.
void AddMatmulToRows(int64_t m, int64_t k, TileOperand a, const Rows& b,
                     const Sizes& sizes, std::vector<float>& buffer,
                     float* out) {
  if (sizes.width == sizes.padded_width) {
    AddTileMatmul(m, sizes.width, k, a, b.data, b.stride, out, sizes.stride);
    return;
  }
  buffer.resize(m * sizes.padded_width);
  Pack(out, m, sizes.stride, sizes.width, sizes.padded_width, buffer.data());
  AddTileMatmul(m, sizes.padded_width, k, a, b.data, b.stride, buffer.data(),
                sizes.padded_width);
  for (int64_t r = 0; r < m; ++r) {
    std::copy_n(buffer.data() + r * sizes.padded_width, sizes.width,
                out + r * sizes.stride);
  }
}

void CheckSizes(const Tensor& q, const Tensor& k, const Tensor& v,
                const Tensor& key_lengths, const AttentionOptions& options) {
  CHECK(q.rank() == 4 && k.rank() == 4 && v.dims() == k.dims());
  CHECK(k.dim(0) == q.dim(0) && k.dim(2) == q.dim(2) && k.dim(3) == q.dim(3));
  CHECK(key_lengths.size() == q.dim(0));
  for (const int32_t length : key_lengths.span<int32_t>()) {
    CHECK(length >= 0 && length <= k.dim(1));
  }
  CHECK(options.dropout_rate >= 0.0f && options.dropout_rate < 1.0f);
}

// Queries whose scores are computed together: few, so that scores stay in the
// cache and grow with the number of keys only.
constexpr int64_t kQueryBlock = 64;

// Queries [first, end) of a head. They see no key from `seen` on.
struct QueryBlock {
  int64_t first, end, seen;
  int64_t stride;  // between rows of scores
  int64_t size() const { return end - first; }
};

// Calls body(block) for all queries of a head with `length` keys.
template <typename Body>
void ForEachQueryBlock(const Sizes& sizes, const AttentionOptions& options,
                       int64_t length, const Body& body) {
  for (int64_t first = 0; first < sizes.queries; first += kQueryBlock) {
    const int64_t end = std::min(first + kQueryBlock, sizes.queries);
    const int64_t seen = VisibleKeys(sizes, options, length, end - 1);
    body(QueryBlock{first, end, seen, PadToTile(seen)});
  }
}

// Buffers for one head, one set per thread: they are small and reused at once.
struct Workspace {
  std::vector<float> transposed, scores, rows, queries, out;
  // Of the gradient only.
  std::vector<float> transposed_values, dscores, douts;
};

Workspace& ThreadWorkspace(const Sizes& sizes) {
  thread_local Workspace workspace;
  workspace.transposed.resize(sizes.width * sizes.padded_keys);
  workspace.scores.resize(std::min(sizes.queries, kQueryBlock) *
                          sizes.padded_keys);
  return workspace;
}

Workspace& ThreadWorkspaceOfGradient(const Sizes& sizes) {
  Workspace& workspace = ThreadWorkspace(sizes);
  workspace.transposed_values.resize(workspace.transposed.size());
  workspace.dscores.resize(workspace.scores.size());
  return workspace;
}

// Calls body(sentence, head) for all heads. `products` is the number of matrix
// products of size queries x keys x width per head; it determines the chunk
// size.
template <typename Body>
void ForEachHead(const Sizes& sizes, int64_t products, const Body& body) {
  const int64_t work = products * sizes.queries * sizes.keys * sizes.width;
  ParallelForChunks(sizes.batch * sizes.heads, ChunkSize(work / 8),
                    [&](int64_t begin, int64_t end) {
                      for (int64_t i = begin; i < end; ++i) {
                        body(i / sizes.heads, i % sizes.heads);
                      }
                    });
}

}  // namespace

AttentionResult Attention(const Tensor& q, const Tensor& k, const Tensor& v,
                          const Tensor& key_lengths,
                          const AttentionOptions& options,
                          bool keep_statistics) {
  CheckSizes(q, k, v, key_lengths, options);
  const Sizes sizes(q, k);
  AttentionResult result;
  result.out = Tensor(ElementType::kFloat32, q.dims());
  if (keep_statistics) {
    result.statistics = Tensor(ElementType::kFloat32,
                               {sizes.batch, sizes.heads, sizes.queries, 2});
  }
  ForEachHead(sizes, 2, [&](int64_t b, int64_t n) {
    const int64_t length = key_lengths.i32()[b];
    const int64_t padded = PadToTile(length);
    Workspace& work = ThreadWorkspace(sizes);
    float* const scores = work.scores.data();
    PackTransposed(k.f32() + sizes.Key(b, n), length, sizes.stride, sizes.width,
                   padded, work.transposed.data());
    const Rows values(v.f32() + sizes.Key(b, n), length, sizes, work.rows);
    ForEachQueryBlock(sizes, options, length, [&](const QueryBlock& block) {
      const int64_t query = sizes.Query(b, n) + block.first * sizes.stride;
      const Rows queries(q.f32() + query, block.size(), sizes, work.queries);
      TileMatmul(block.size(), block.stride, sizes.width,
                 {queries.data, queries.stride, 1}, work.transposed.data(),
                 padded, scores, block.stride);
      for (int64_t i = block.first; i < block.end; ++i) {
        float* const row = scores + (i - block.first) * block.stride;
        const int64_t visible = VisibleKeys(sizes, options, length, i);
        const SoftmaxStatistics statistics =
            SoftmaxRow(row, visible, block.stride, options.scale);
        if (keep_statistics) {
          float* const kept =
              result.statistics.f32() + sizes.Statistics(b, n, i);
          kept[0] = statistics.max;
          kept[1] = statistics.factor;
        }
        if (options.dropout_rate > 0.0f) {
          DropRow(row, visible, MaskOfRow(options, b, n, i));
        }
      }
      MatmulToRows(block.size(), block.seen, {scores, block.stride, 1}, values,
                   sizes, work.out, result.out.f32() + query);
    });
  });
  return result;
}

AttentionGradients AttentionGradient(const Tensor& q, const Tensor& k,
                                     const Tensor& v, const Tensor& key_lengths,
                                     const AttentionOptions& options,
                                     const Tensor& statistics,
                                     const Tensor& dout) {
  CheckSizes(q, k, v, key_lengths, options);
  const Sizes sizes(q, k);
  CHECK(dout.dims() == q.dims());
  CHECK(statistics.size() == sizes.batch * sizes.heads * sizes.queries * 2);
  AttentionGradients gradients;
  gradients.dq = Tensor(ElementType::kFloat32, q.dims());
  gradients.dk = Tensor(ElementType::kFloat32, k.dims());
  gradients.dv = Tensor(ElementType::kFloat32, k.dims());
  ForEachHead(sizes, 5, [&](int64_t b, int64_t n) {
    const int64_t length = key_lengths.i32()[b];
    const int64_t padded = PadToTile(length);
    Workspace& work = ThreadWorkspaceOfGradient(sizes);
    float* const scores = work.scores.data();
    float* const dscores = work.dscores.data();
    const int64_t key = sizes.Key(b, n);
    const Rows keys(k.f32() + key, length, sizes, work.rows);
    PackTransposed(keys.data, length, keys.stride, sizes.width, padded,
                   work.transposed.data());
    PackTransposed(v.f32() + key, length, sizes.stride, sizes.width, padded,
                   work.transposed_values.data());
    int64_t summed = 0;  // keys that some block has seen
    ForEachQueryBlock(sizes, options, length, [&](const QueryBlock& block) {
      const int64_t query = sizes.Query(b, n) + block.first * sizes.stride;
      const Rows queries(q.f32() + query, block.size(), sizes, work.queries);
      const Rows douts(dout.f32() + query, block.size(), sizes, work.douts);
      // Logits, and dprobabilities = dout v^T.
      TileMatmul(block.size(), block.stride, sizes.width,
                 {queries.data, queries.stride, 1}, work.transposed.data(),
                 padded, scores, block.stride);
      TileMatmul(block.size(), block.stride, sizes.width,
                 {douts.data, douts.stride, 1}, work.transposed_values.data(),
                 padded, dscores, block.stride);
      // In place: probabilities and dlogits.
      for (int64_t i = block.first; i < block.end; ++i) {
        const int64_t visible = VisibleKeys(sizes, options, length, i);
        float* const p = scores + (i - block.first) * block.stride;
        float* const d = dscores + (i - block.first) * block.stride;
        const float* const kept = statistics.f32() + sizes.Statistics(b, n, i);
        SoftmaxRowAgain(p, visible, block.stride, options.scale,
                        {kept[0], kept[1]});
        if (options.dropout_rate > 0.0f) {
          const DropoutMask mask = MaskOfRow(options, b, n, i);
          DropRow(d, visible, mask);
          SoftmaxGradientRow(p, d, visible, block.stride, options.scale);
          DropRow(p, visible, mask);
        } else {
          SoftmaxGradientRow(p, d, visible, block.stride, options.scale);
        }
      }
      // dv = probabilities^T dout, dk = dlogits^T q, dq = dlogits k.
      const auto add = [&](const float* factors, const Rows& rows,
                           float* sums) {
        AddMatmulToRows(summed, block.size(), {factors, 1, block.stride}, rows,
                        sizes, work.out, sums);
        MatmulToRows(block.seen - summed, block.size(),
                     {factors + summed, 1, block.stride}, rows, sizes, work.out,
                     sums + summed * sizes.stride);
      };
      add(scores, douts, gradients.dv.f32() + key);
      add(dscores, queries, gradients.dk.f32() + key);
      summed = block.seen;
      MatmulToRows(block.size(), block.seen, {dscores, block.stride, 1}, keys,
                   sizes, work.out, gradients.dq.f32() + query);
    });
    for (Tensor* sums : {&gradients.dk, &gradients.dv}) {
      float* const head = sums->f32() + key;
      for (int64_t j = summed; j < sizes.keys; ++j) {
        std::fill_n(head + j * sizes.stride, sizes.width, 0.0f);
      }
    }
  });
  return gradients;
}

}  // namespace gshard
