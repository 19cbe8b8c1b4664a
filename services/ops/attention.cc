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

GSHARD_SIMD void DropRow(const float* x, float* out, int64_t size,
                         DropoutMask mask) {
#pragma omp simd
  for (int64_t j = 0; j < size; ++j) out[j] = x[j] * mask.Factor(j);
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

// Buffers for one head, one set per thread: they are small and reused at once.
struct Workspace {
  std::vector<float> transposed, scores, dropped, rows, out;
};

// With room for the scores of this many queries.
Workspace& ThreadWorkspace(const Sizes& sizes, int64_t queries) {
  thread_local Workspace workspace;
  workspace.transposed.resize(sizes.width * sizes.padded_keys);
  workspace.scores.resize(queries * sizes.padded_keys);
  return workspace;
}

// Frees a buffer that is large, which a thread would keep for good.
void FreeIfLarge(std::vector<float>& buffer) {
  constexpr size_t kLarge = size_t{1} << 20;
  if (buffer.size() > kLarge) std::vector<float>().swap(buffer);
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
                          bool keep_probabilities) {
  CheckSizes(q, k, v, key_lengths, options);
  const Sizes sizes(q, k);
  AttentionResult result;
  result.out = Tensor(ElementType::kFloat32, q.dims());
  if (keep_probabilities) {
    result.probabilities =
        Tensor(ElementType::kFloat32,
               {sizes.batch, sizes.heads, sizes.queries, sizes.keys});
  }
  ForEachHead(sizes, 2, [&](int64_t b, int64_t n) {
    const int64_t length = key_lengths.i32()[b];
    const int64_t padded = PadToTile(length);
    Workspace& work =
        ThreadWorkspace(sizes, std::min(sizes.queries, kQueryBlock));
    float* const scores = work.scores.data();
    PackTransposed(k.f32() + sizes.Key(b, n), length, sizes.stride, sizes.width,
                   padded, work.transposed.data());
    const Rows values(v.f32() + sizes.Key(b, n), length, sizes, work.rows);
    for (int64_t first = 0; first < sizes.queries; first += kQueryBlock) {
      const int64_t end = std::min(first + kQueryBlock, sizes.queries);
      const int64_t query = sizes.Query(b, n) + first * sizes.stride;
      TileMatmul(end - first, padded, sizes.width,
                 {q.f32() + query, sizes.stride, 1}, work.transposed.data(),
                 padded, scores, padded);
      for (int64_t i = first; i < end; ++i) {
        float* const row = scores + (i - first) * padded;
        const int64_t visible = VisibleKeys(sizes, options, length, i);
        SoftmaxRow(row, visible, padded, options.scale);
        if (keep_probabilities) {
          float* const kept =
              result.probabilities.f32() +
              ((b * sizes.heads + n) * sizes.queries + i) * sizes.keys;
          std::copy_n(row, length, kept);
          std::fill(kept + length, kept + sizes.keys, 0.0f);
        }
        if (options.dropout_rate > 0.0f) {
          DropRow(row, row, visible, MaskOfRow(options, b, n, i));
        }
      }
      MatmulToRows(end - first, length, {scores, padded, 1}, values, sizes,
                   work.out, result.out.f32() + query);
    }
  });
  return result;
}

AttentionGradients AttentionGradient(const Tensor& q, const Tensor& k,
                                     const Tensor& v, const Tensor& key_lengths,
                                     const AttentionOptions& options,
                                     const Tensor& probabilities,
                                     const Tensor& dout) {
  CheckSizes(q, k, v, key_lengths, options);
  const Sizes sizes(q, k);
  CHECK(dout.dims() == q.dims());
  CHECK(probabilities.size() ==
        sizes.batch * sizes.heads * sizes.queries * sizes.keys);
  AttentionGradients gradients;
  gradients.dq = Tensor(ElementType::kFloat32, q.dims());
  gradients.dk = Tensor(ElementType::kFloat32, k.dims());
  gradients.dv = Tensor(ElementType::kFloat32, k.dims());
  ForEachHead(sizes, 5, [&](int64_t b, int64_t n) {
    const int64_t length = key_lengths.i32()[b];
    const int64_t padded = PadToTile(length);
    Workspace& work = ThreadWorkspace(sizes, sizes.queries);
    if (options.dropout_rate > 0.0f) {
      work.dropped.resize(sizes.queries * sizes.padded_keys);
    }
    float* const dscores = work.scores.data();
    float* const dropped = work.dropped.data();
    const int64_t query = sizes.Query(b, n), key = sizes.Key(b, n);
    const float* const kept = probabilities.f32() + (b * sizes.heads + n) *
                                                        sizes.queries *
                                                        sizes.keys;

    // dprobabilities = dout v^T, then dlogits in place.
    PackTransposed(v.f32() + key, length, sizes.stride, sizes.width, padded,
                   work.transposed.data());
    TileMatmul(sizes.queries, padded, sizes.width,
               {dout.f32() + query, sizes.stride, 1}, work.transposed.data(),
               padded, dscores, padded);
    for (int64_t i = 0; i < sizes.queries; ++i) {
      const int64_t visible = VisibleKeys(sizes, options, length, i);
      const float* const p = kept + i * sizes.keys;
      float* const d = dscores + i * padded;
      if (options.dropout_rate > 0.0f) {
        const DropoutMask mask = MaskOfRow(options, b, n, i);
        DropRow(d, d, visible, mask);
        DropRow(p, dropped + i * padded, visible, mask);
        std::fill(dropped + i * padded + visible, dropped + (i + 1) * padded,
                  0.0f);
      }
      SoftmaxGradientRow(p, d, visible, padded, options.scale);
    }

    // dv = dropped^T dout, dk = dlogits^T q, dq = dlogits k.
    const TileOperand transposed_probabilities =
        options.dropout_rate > 0.0f ? TileOperand{dropped, 1, padded}
                                    : TileOperand{kept, 1, sizes.keys};
    MatmulToRows(length, sizes.queries, transposed_probabilities,
                 Rows(dout.f32() + query, sizes.queries, sizes, work.rows),
                 sizes, work.out, gradients.dv.f32() + key);
    MatmulToRows(length, sizes.queries, {dscores, 1, padded},
                 Rows(q.f32() + query, sizes.queries, sizes, work.rows), sizes,
                 work.out, gradients.dk.f32() + key);
    MatmulToRows(sizes.queries, length, {dscores, padded, 1},
                 Rows(k.f32() + key, length, sizes, work.rows), sizes, work.out,
                 gradients.dq.f32() + query);
    FreeIfLarge(work.scores);
    FreeIfLarge(work.dropped);
  });
  for (int64_t b = 0; b < sizes.batch; ++b) {
    const int64_t length = key_lengths.i32()[b];
    const int64_t first_pad = sizes.Key(b, 0) + length * sizes.stride;
    const int64_t end = sizes.Key(b, 0) + sizes.keys * sizes.stride;
    for (Tensor* gradient : {&gradients.dk, &gradients.dv}) {
      std::fill(gradient->f32() + first_pad, gradient->f32() + end, 0.0f);
    }
  }
  return gradients;
}

}  // namespace gshard
