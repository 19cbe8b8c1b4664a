// Attention and its gradient (services/ops/attention.h) by tiles of 64 queries
// and 64 keys, in float32. Logits and probabilities of a tile stay in registers
// and shared memory, so memory grows with the length, not with its square.
//
// Tiles are counted from the first query and the first key of the sentence, and
// sums go in the order of tiles. What a query does not see adds zeros, or is
// skipped. So the bits of a query or key depend neither on padding nor on other
// sentences.

#ifndef SERVICES_CUDA_KERNELS_ATTENTION_TILES_H_
#define SERVICES_CUDA_KERNELS_ATTENTION_TILES_H_

#include <cmath>
#include <cstdint>

#include "services/base/splitmix64.h"
#include "services/cuda/kernels/rows.h"
#include "services/cuda/kernels/softmax_rows.h"
#include "services/ops/dropout_mask.h"
#include "services/ops/exp.h"

namespace gshard::cuda {

// Which keys a query sees and which probabilities are dropped, as defined by
// AttentionOptions.
struct AttentionMask {
  const int32_t* lengths;  // [B]
  int64_t heads, queries, keys;
  int64_t first_sentence, first_head, first_query;
  int64_t all_queries;
  bool causal;
  float scale;
  float dropout_rate;
  uint64_t dropout_key;

  GSHARD_KERNEL_INLINE bool drops() const { return dropout_rate > 0.0f; }
  // The number of keys that query `i` of sentence `b` sees.
  GSHARD_KERNEL_INLINE int64_t Visible(int64_t b, int64_t i) const {
    const int64_t length = lengths[b];
    if (!causal) return length;
    const int64_t seen = first_query + i + 1 + keys - all_queries;
    return seen < 0 ? 0 : seen < length ? seen : length;
  }
  GSHARD_KERNEL_INLINE DropoutMask Drops(int64_t b, int64_t n,
                                         int64_t i) const {
    if (!drops()) return DropoutMask(0.0f, 0);
    const uint64_t key =
        FoldIn(FoldIn(FoldIn(dropout_key, first_sentence + b), first_head + n),
               first_query + i);
    return DropoutMask(dropout_rate, key);
  }
};

// Operands of both directions. q [B, Lq, N, D], k and v [B, Lk, N, D].
struct AttentionOperands {
  AttentionMask mask;
  int64_t batch, width;
  FloatsOrRounded q, k, v;
};

struct AttentionForward {
  AttentionOperands operands;
  float* out;         // [B, Lq, N, D]
  float* statistics;  // [B, N, Lq, 2], or null
};

struct AttentionBackward {
  AttentionOperands operands;
  const float* statistics;
  const float* dout;  // [B, Lq, N, D]
  float* dots;        // [B, N, Lq], between the two kernels
  float* dq;
  float* dk;
  float* dv;
};

// The rows of one head of x [B, L, N, D]. Those from `rows` on are zeros,
// whatever the tensor contains there.
struct HeadRows {
  FloatsOrRounded x;
  int64_t begin, stride, rows, width;
  bool are_fours;  // four columns may be read at once

  GSHARD_KERNEL_INLINE HeadRows(FloatsOrRounded of, int64_t first,
                                int64_t apart, int64_t number, int64_t columns)
      : x(of),
        begin(first),
        stride(apart),
        rows(number),
        width(columns),
        are_fours(width % 4 == 0 && AreFours(x.floats) && AreFours(x.rounded)) {
  }

  // Columns [column, column + 4) of a row; column is a multiple of 4.
  GSHARD_KERNEL_INLINE Four<float> At(int64_t row, int64_t column) const {
    Four<float> four = {};
    const int64_t left = row < rows ? width - column : 0;
    const int64_t at = begin + row * stride + column;
    if (!are_fours) {
      GSHARD_UNROLL for (int i = 0; i < 4; ++i) {
        if (i < left) four.at[i] = x[at + i];
      }
    } else if (left > 0 && x.floats != nullptr) {
      four = *reinterpret_cast<const Four<float>*>(x.floats + at);
    } else if (left > 0) {
      const auto rounded =
          *reinterpret_cast<const Four<BFloat16>*>(x.rounded + at);
      GSHARD_UNROLL for (int i = 0; i < 4; ++i) {
        four.at[i] = ToFloat(rounded.at[i]);
      }
    }
    return four;
  }
};

// The tile of this block: head `n` of sentence `b`, rows from `first` on, of
// queries or of keys.
struct AttentionBlock {
  static constexpr int kRows = 64;

  int64_t b, n, first;

  GSHARD_KERNEL_INLINE AttentionBlock(const AttentionMask& mask, int64_t rows) {
    const int64_t tiles = BlocksAlong(rows, kRows);
    const int64_t head = BlockIndex() / tiles;
    b = head / mask.heads;
    n = head % mask.heads;
    first = BlockIndex() % tiles * kRows;
  }

  GSHARD_KERNEL_INLINE HeadRows Queries(const AttentionOperands& o,
                                        FloatsOrRounded x) const {
    return Rows(o, x, o.mask.queries, o.mask.queries);
  }
  GSHARD_KERNEL_INLINE HeadRows Keys(const AttentionOperands& o,
                                     FloatsOrRounded x) const {
    return Rows(o, x, o.mask.keys, o.mask.lengths[b]);
  }
  // The number of keys that some query sees of the tile that begins at `i`.
  GSHARD_KERNEL_INLINE int64_t Seen(const AttentionMask& mask,
                                    int64_t i) const {
    const int64_t last = i + kRows < mask.queries ? i + kRows : mask.queries;
    return mask.Visible(b, last - 1);
  }

 private:
  GSHARD_KERNEL_INLINE HeadRows Rows(const AttentionOperands& o,
                                     FloatsOrRounded x, int64_t length,
                                     int64_t rows) const {
    const int64_t heads = o.mask.heads;
    return HeadRows(x, (b * length * heads + n) * o.width, heads * o.width,
                    rows, o.width);
  }
};

// A query in the gradient: its probabilities from its statistics.
struct AttentionQuery {
  int64_t visible;  // 0 beyond the last query
  DropoutMask drops;
  float max, factor;

  GSHARD_KERNEL_INLINE AttentionQuery(const AttentionMask& mask,
                                      const float* statistics, int64_t b,
                                      int64_t n, int64_t i)
      : visible(i < mask.queries ? mask.Visible(b, i) : 0),
        drops(mask.Drops(b, n, i)) {
    const int64_t row = (b * mask.heads + n) * mask.queries + i;
    max = visible > 0 ? statistics[2 * row] : 0.0f;
    factor = visible > 0 ? statistics[2 * row + 1] : 0.0f;
  }

  // Turns q k^T into the probability of a key, and dout v^T into its gradient.
  // Both are 0 for a key that is not visible.
  GSHARD_KERNEL_INLINE void Apply(const AttentionMask& mask, int64_t key,
                                  float& p, float& d) const {
    const bool sees = key < visible;
    p = sees ? Exp(p * mask.scale - max) * factor : 0.0f;
    d = sees ? d : 0.0f;
    if (mask.drops()) d *= drops.Factor(key);
  }
};

// What a block of threads computes with a tile. Each thread has 4 x 4 of its
// elements, from (Row(), Column()) on: 16 neighbours share their rows. Of
// results with the width of a head, it has the same rows, and four columns of
// each of `kChunks` chunks of 64.
template <int kChunks>
struct AttentionTile {
  static constexpr int kThreads = 256;
  static constexpr int kRows = AttentionBlock::kRows;
  static constexpr int kColumns = kRows * kChunks;
  static constexpr int kSlice = 16;
  static constexpr int kLine = kRows + 4;  // aligned, and in other banks
  static constexpr int kSliceFloats = 2 * kSlice * kLine > kSlice* kColumns
                                          ? 2 * kSlice* kLine
                                          : kSlice* kColumns;
  static constexpr int kSharedBytes = (kSliceFloats + kRows * kLine) * 4;

  using Sums = float[4][4 * kChunks];

  static GSHARD_KERNEL_INLINE int Row() { return ThreadIndex() / 16 * 4; }
  static GSHARD_KERNEL_INLINE int Column() { return ThreadIndex() % 16 * 4; }

  // By the 16 threads of a row: the sum or maximum over them, for all of them.
  static GSHARD_KERNEL_INLINE float RowSum(float x) {
    for (int apart = 8; apart > 0; apart /= 2) {
      x += ShuffleFloat(x, Lane() ^ apart);
    }
    return x;
  }
  static GSHARD_KERNEL_INLINE float RowMax(float x) {
    for (int apart = 8; apart > 0; apart /= 2) {
      const float other = ShuffleFloat(x, Lane() ^ apart);
      x = other > x ? other : x;
    }
    return x;
  }

  // sums = the products of rows of a, from `of_a` on, with rows of b, from
  // `of_b` on.
  static GSHARD_KERNEL_INLINE void Dots(const HeadRows& a, int64_t of_a,
                                        const HeadRows& b, int64_t of_b,
                                        float (&sums)[4][4]) {
    float* const a_part = Slice();
    float* const b_part = a_part + kSlice * kLine;
    GSHARD_UNROLL for (int i = 0; i < 4; ++i) {
      GSHARD_UNROLL for (int j = 0; j < 4; ++j) sums[i][j] = 0.0f;
    }
    static_assert(kSlice * kRows == 4 * kThreads);
    const int row = ThreadIndex() * 4 / kSlice;
    const int depth = ThreadIndex() * 4 % kSlice;
    for (int64_t at = 0; at < a.width; at += kSlice) {
      const Four<float> of_row = a.At(of_a + row, at + depth);
      const Four<float> of_column = b.At(of_b + row, at + depth);
      GSHARD_UNROLL for (int i = 0; i < 4; ++i) {
        a_part[(depth + i) * kLine + row] = of_row.at[i];
        b_part[(depth + i) * kLine + row] = of_column.at[i];
      }
      Sync();
      GSHARD_UNROLL for (int d = 0; d < kSlice; ++d) {
        const Four<float> x = Load(a_part + d * kLine + Row());
        const Four<float> y = Load(b_part + d * kLine + Column());
        GSHARD_UNROLL for (int i = 0; i < 4; ++i) {
          GSHARD_UNROLL for (int j = 0; j < 4; ++j) {
            sums[i][j] = fmaf(x.at[i], y.at[j], sums[i][j]);
          }
        }
      }
      Sync();
    }
  }

  // sums += factors x, with the rows of x from `first` on: factors are the
  // elements of a tile, of which each thread passes its own.
  static GSHARD_KERNEL_INLINE void AddProduct(const float (&factors)[4][4],
                                              const HeadRows& x, int64_t first,
                                              Sums& sums) {
    float* const part = Slice();
    float* const shared = part + kSliceFloats;
    GSHARD_UNROLL for (int j = 0; j < 4; ++j) {
      Four<float> of_column;
      GSHARD_UNROLL for (int i = 0; i < 4; ++i) of_column.at[i] = factors[i][j];
      Load(shared + (Column() + j) * kLine + Row()) = of_column;
    }
    for (int at = 0; at < kRows && first + at < x.rows; at += kSlice) {
      GSHARD_UNROLL for (int c = 0; c < kChunks; ++c) {
        const int i = (ThreadIndex() + c * kThreads) * 4;
        Load(part + i) = x.At(first + at + i / kColumns, i % kColumns);
      }
      Sync();
      GSHARD_UNROLL for (int k = 0; k < kSlice; ++k) {
        const Four<float> of_row = Load(shared + (at + k) * kLine + Row());
        GSHARD_UNROLL for (int c = 0; c < kChunks; ++c) {
          const Four<float> y =
              Load(part + k * kColumns + c * kRows + Column());
          GSHARD_UNROLL for (int i = 0; i < 4; ++i) {
            GSHARD_UNROLL for (int j = 0; j < 4; ++j) {
              float& sum = sums[i][4 * c + j];
              sum = fmaf(of_row.at[i], y.at[j], sum);
            }
          }
        }
      }
      Sync();
    }
  }

  // Stores this thread's sums, times the factor of each row, as the rows of a
  // head of out [B, length, N, D].
  static GSHARD_KERNEL_INLINE void Store(const AttentionOperands& o,
                                         const AttentionBlock& block,
                                         int64_t length, const Sums& sums,
                                         const float (&factors)[4],
                                         float* out) {
    GSHARD_UNROLL for (int i = 0; i < 4; ++i) {
      const int64_t row = block.first + Row() + i;
      if (row >= length) continue;
      float* const to =
          out + ((block.b * length + row) * o.mask.heads + block.n) * o.width;
      GSHARD_UNROLL for (int c = 0; c < 4 * kChunks; ++c) {
        const int column = c / 4 * kRows + Column() + c % 4;
        if (column < o.width) to[column] = sums[i][c] * factors[i];
      }
    }
  }

 private:
  static GSHARD_KERNEL_INLINE Four<float>& Load(float* x) {
    return *reinterpret_cast<Four<float>*>(x);
  }
  static GSHARD_KERNEL_INLINE float* Slice() {
    return reinterpret_cast<float*>(SharedMemory());
  }
};

// The widest heads: four chunks.
inline constexpr int64_t kMostHeadWidth = 4 * AttentionBlock::kRows;

// Calls function<chunks>() for heads of this width.
template <typename Function>
auto ByHeadWidth(int64_t width, const Function& function) {
  constexpr int64_t kChunk = AttentionBlock::kRows;
  if (width <= kChunk) return function.template operator()<1>();
  if (width <= 2 * kChunk) return function.template operator()<2>();
  return function.template operator()<4>();
}

// Blocks of the kernels below: `rows` are queries, or keys for the last one.
inline int64_t AttentionBlocks(const AttentionOperands& o, int64_t rows) {
  return o.batch * o.mask.heads * BlocksAlong(rows, AttentionBlock::kRows);
}

// The results and statistics of a tile of queries. The softmax is computed as
// the keys go by: a larger logit rescales the sums so far.
template <int kChunks>
GSHARD_KERNEL_INLINE void AttentionForwardBlock(const AttentionForward& f) {
  using Tile = AttentionTile<kChunks>;
  const AttentionOperands& o = f.operands;
  const AttentionMask& mask = o.mask;
  const AttentionBlock block(mask, mask.queries);
  const HeadRows q = block.Queries(o, o.q), k = block.Keys(o, o.k),
                 v = block.Keys(o, o.v);
  const int64_t query = block.first + Tile::Row();
  const auto drops = [&](int i) {
    return mask.Drops(block.b, block.n, query + i);
  };
  const DropoutMask dropped[4] = {drops(0), drops(1), drops(2), drops(3)};
  typename Tile::Sums sums = {};
  float max[4] = {kNoMaximum, kNoMaximum, kNoMaximum, kNoMaximum};
  float total[4] = {};
  const int64_t seen = block.Seen(mask, block.first);
  for (int64_t first = 0; first < seen; first += Tile::kRows) {
    float p[4][4];
    Tile::Dots(q, block.first, k, first, p);
    const int64_t key = first + Tile::Column();
    GSHARD_UNROLL for (int i = 0; i < 4; ++i) {
      const int64_t visible = mask.Visible(block.b, query + i);
      float largest = max[i];
      GSHARD_UNROLL for (int j = 0; j < 4; ++j) {
        p[i][j] = key + j < visible ? p[i][j] * mask.scale : kNoMaximum;
        largest = p[i][j] > largest ? p[i][j] : largest;
      }
      largest = Tile::RowMax(largest);
      const float base = Base(largest);
      const float rescale = Exp(max[i] - base);
      float sum = 0.0f;
      GSHARD_UNROLL for (int j = 0; j < 4; ++j) {
        p[i][j] = Exp(p[i][j] - base);
        sum += p[i][j];
        if (mask.drops()) p[i][j] *= dropped[i].Factor(key + j);
      }
      max[i] = largest;
      total[i] = total[i] * rescale + Tile::RowSum(sum);
      GSHARD_UNROLL for (int c = 0; c < 4 * kChunks; ++c) sums[i][c] *= rescale;
    }
    Tile::AddProduct(p, v, first, sums);
  }
  float factors[4];
  GSHARD_UNROLL for (int i = 0; i < 4; ++i) {
    const bool any = max[i] != kNoMaximum;
    factors[i] = any ? 1.0f / total[i] : 0.0f;
    if (f.statistics == nullptr || Tile::Column() != 0) continue;
    if (query + i >= mask.queries) continue;
    const int64_t row =
        (block.b * mask.heads + block.n) * mask.queries + query + i;
    f.statistics[2 * row] = any ? max[i] : 0.0f;
    f.statistics[2 * row + 1] = factors[i];
  }
  Tile::Store(o, block, mask.queries, sums, factors, f.out);
}

// dq of a tile of queries, and for each of them the sum over all keys of
// probabilities times their gradients. With more than one tile of keys, all are
// computed twice: the gradient of the first logit needs the sum over all.
template <int kChunks>
GSHARD_KERNEL_INLINE void AttentionQueriesGradientBlock(
    const AttentionBackward& g) {
  using Tile = AttentionTile<kChunks>;
  const AttentionOperands& o = g.operands;
  const AttentionMask& mask = o.mask;
  const AttentionBlock block(mask, mask.queries);
  const HeadRows q = block.Queries(o, o.q), k = block.Keys(o, o.k),
                 v = block.Keys(o, o.v),
                 dout = block.Queries(o, {g.dout, nullptr});
  const int64_t query = block.first + Tile::Row();
  const auto at = [&](int i) {
    return AttentionQuery(mask, g.statistics, block.b, block.n, query + i);
  };
  const AttentionQuery queries[4] = {at(0), at(1), at(2), at(3)};
  float p[4][4], d[4][4];
  const auto compute = [&](int64_t first) {
    Tile::Dots(q, block.first, k, first, p);
    Tile::Dots(dout, block.first, v, first, d);
    GSHARD_UNROLL for (int i = 0; i < 4; ++i) {
      GSHARD_UNROLL for (int j = 0; j < 4; ++j) {
        queries[i].Apply(mask, first + Tile::Column() + j, p[i][j], d[i][j]);
      }
    }
  };
  const int64_t seen = block.Seen(mask, block.first);
  float dots[4] = {};
  for (int64_t first = 0; first < seen; first += Tile::kRows) {
    compute(first);
    GSHARD_UNROLL for (int i = 0; i < 4; ++i) {
      GSHARD_UNROLL for (int j = 0; j < 4; ++j) dots[i] += p[i][j] * d[i][j];
    }
  }
  GSHARD_UNROLL for (int i = 0; i < 4; ++i) {
    dots[i] = Tile::RowSum(dots[i]);
    if (Tile::Column() != 0 || query + i >= mask.queries) continue;
    g.dots[(block.b * mask.heads + block.n) * mask.queries + query + i] =
        dots[i];
  }
  typename Tile::Sums dq = {};
  for (int64_t first = 0; first < seen; first += Tile::kRows) {
    if (seen > Tile::kRows) compute(first);
    GSHARD_UNROLL for (int i = 0; i < 4; ++i) {
      GSHARD_UNROLL for (int j = 0; j < 4; ++j) {
        d[i][j] = mask.scale * p[i][j] * (d[i][j] - dots[i]);
      }
    }
    Tile::AddProduct(d, k, first, dq);
  }
  Tile::Store(o, block, mask.queries, dq, {1.0f, 1.0f, 1.0f, 1.0f}, g.dq);
}

// dk and dv of a tile of keys, after AttentionQueriesGradientBlock.
template <int kChunks>
GSHARD_KERNEL_INLINE void AttentionKeysGradientBlock(
    const AttentionBackward& g) {
  using Tile = AttentionTile<kChunks>;
  const AttentionOperands& o = g.operands;
  const AttentionMask& mask = o.mask;
  const AttentionBlock block(mask, mask.keys);
  const HeadRows q = block.Queries(o, o.q), k = block.Keys(o, o.k),
                 v = block.Keys(o, o.v),
                 dout = block.Queries(o, {g.dout, nullptr});
  typename Tile::Sums dk = {}, dv = {};
  for (int64_t first = 0; first < mask.queries; first += Tile::kRows) {
    if (block.Seen(mask, first) <= block.first) continue;
    // By key and query.
    float p[4][4], d[4][4];
    Tile::Dots(k, block.first, q, first, p);
    Tile::Dots(v, block.first, dout, first, d);
    GSHARD_UNROLL for (int j = 0; j < 4; ++j) {
      const int64_t i_of_query = first + Tile::Column() + j;
      const AttentionQuery query(mask, g.statistics, block.b, block.n,
                                 i_of_query);
      const float dot =
          query.visible > 0
              ? g.dots[(block.b * mask.heads + block.n) * mask.queries +
                       i_of_query]
              : 0.0f;
      GSHARD_UNROLL for (int i = 0; i < 4; ++i) {
        const int64_t key = block.first + Tile::Row() + i;
        query.Apply(mask, key, p[i][j], d[i][j]);
        d[i][j] = mask.scale * p[i][j] * (d[i][j] - dot);
        if (mask.drops()) p[i][j] *= query.drops.Factor(key);
      }
    }
    Tile::AddProduct(p, dout, first, dv);
    Tile::AddProduct(d, q, first, dk);
  }
  const float ones[4] = {1.0f, 1.0f, 1.0f, 1.0f};
  Tile::Store(o, block, mask.keys, dk, ones, g.dk);
  Tile::Store(o, block, mask.keys, dv, ones, g.dv);
}

}  // namespace gshard::cuda

#endif  // SERVICES_CUDA_KERNELS_ATTENTION_TILES_H_
