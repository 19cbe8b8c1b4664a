#include "services/ops/matmul.h"

#include <omp.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "services/base/check.h"
#include "services/base/parallel.h"
#include "services/ops/bf16_dots.h"
#include "services/ops/cast.h"
#include "services/ops/cpu_isa.h"
#include "services/ops/panel.h"
#include "services/ops/plain_matmul.h"
#include "services/tensor/buffer.h"

namespace gshard {
namespace {

using dnnl::memory;

// Compiling a new shape takes 200 to 300 us and about 60 KiB; reusing a cached
// one is free. The limit is for shapes that never repeat.
constexpr size_t kMaxCachedShapes = 1024;

// Multiplications in a product that takes about as long as compiling its shape.
// Smaller products share shapes; otherwise every new number of rows, and new
// ones keep coming for days, would cost that time and memory.
constexpr int64_t kCompileWork = 8 << 20;

// The number of rows of the shared shape for a product with m rows: m up to 64,
// above that one of sixteen steps per octave, so that at most a sixteenth of
// the work is wasted.
int64_t SharedRows(int64_t m) {
  if (m <= 64) return m;
  const int64_t step = std::bit_floor(static_cast<uint64_t>(m - 1)) / 16;
  return (m + step - 1) / step * step;
}

using Key = std::tuple<int64_t, int64_t, int64_t, bool, bool, bool>;

struct Primitive {
  dnnl::matmul matmul;
  memory a, b, c;
};

// Never destroyed: threads may still compute while the process exits.
const dnnl::engine& Engine() {
  static const auto* const engine =
      new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return *engine;
}

class PrimitiveCache {
 public:
  // oneDNN reads the calling thread's OpenMP thread count when it compiles.
  PrimitiveCache() : stream_(Engine()) { omp_set_num_threads(1); }

  void Execute(const MatmulShape& shape, const float* a, const float* b,
               float* c, bool accumulate) {
    MatmulShape shared = shape;
    if (!shape.transpose_a && shape.m * shape.n * shape.k < kCompileWork) {
      shared.m = SharedRows(shape.m);
    }
    if (shared.m == shape.m) return Run(shape, a, b, c, accumulate);
    const size_t a_bytes = shape.m * shape.k * sizeof(float);
    const size_t c_bytes = shape.m * shape.n * sizeof(float);
    const std::shared_ptr<std::byte> more_a =
        AllocateBuffer(shared.m * shape.k * sizeof(float));
    const std::shared_ptr<std::byte> more_c =
        AllocateBuffer(shared.m * shape.n * sizeof(float));
    std::memcpy(more_a.get(), a, a_bytes);
    // Zeros, as arithmetic on leftover values can be slow.
    std::memset(more_a.get() + a_bytes, 0,
                (shared.m - shape.m) * shape.k * sizeof(float));
    auto* const sums = reinterpret_cast<float*>(more_c.get());
    if (accumulate) {
      std::memcpy(sums, c, c_bytes);
      std::fill_n(sums + shape.m * shape.n, (shared.m - shape.m) * shape.n,
                  0.0f);
    }
    Run(shared, more_a.get(), b, sums, accumulate);
    std::memcpy(c, sums, c_bytes);
  }

 private:
  void Run(const MatmulShape& shape, const void* a, const void* b, float* c,
           bool accumulate) {
    Primitive& primitive = Get(shape, accumulate);
    primitive.a.set_data_handle(const_cast<void*>(a));
    primitive.b.set_data_handle(const_cast<void*>(b));
    primitive.c.set_data_handle(c);
    primitive.matmul.execute(stream_, {{DNNL_ARG_SRC, primitive.a},
                                       {DNNL_ARG_WEIGHTS, primitive.b},
                                       {DNNL_ARG_DST, primitive.c}});
    stream_.wait();
  }

  Primitive& Get(const MatmulShape& shape, bool accumulate) {
    const Key key{shape.m,           shape.n,           shape.k,
                  shape.transpose_a, shape.transpose_b, accumulate};
    auto found = primitives_.find(key);
    if (found != primitives_.end()) return found->second;
    if (primitives_.size() >= kMaxCachedShapes) primitives_.clear();
    return primitives_.emplace(key, Compile(shape, accumulate)).first->second;
  }

  static memory::desc Matrix(int64_t rows, int64_t columns, bool transpose) {
    return memory::desc(
        {rows, columns}, memory::data_type::f32,
        transpose ? memory::dims{1, rows} : memory::dims{columns, 1});
  }

  static Primitive Compile(const MatmulShape& shape, bool accumulate) {
    omp_set_num_threads(1);
    const memory::desc a = Matrix(shape.m, shape.k, shape.transpose_a);
    const memory::desc b = Matrix(shape.k, shape.n, shape.transpose_b);
    const memory::desc c = Matrix(shape.m, shape.n, false);
    dnnl::primitive_attr attributes;
    if (accumulate) {
      dnnl::post_ops post_ops;
      post_ops.append_sum(1.0f);
      attributes.set_post_ops(post_ops);
    }
    const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(a, b, c),
                                                   attributes, Engine());
    return Primitive{dnnl::matmul(description), memory(a, Engine(), nullptr),
                     memory(b, Engine(), nullptr),
                     memory(c, Engine(), nullptr)};
  }

  dnnl::stream stream_;
  absl::flat_hash_map<Key, Primitive> primitives_;
};

PrimitiveCache& ThreadCache() {
  thread_local PrimitiveCache cache;
  return cache;
}

// A block of a product: its shape, and the distances between the stored rows of
// the three matrices.
struct Block {
  MatmulShape shape;
  int64_t a_stride, b_stride, c_stride;
  bool accumulate;
};

// oneDNN has two ways to multiply. If b is stored as [k, n], gemm packs it at
// less cost than the matmul primitive: with few rows and weights that come from
// memory, as for experts, gemm is a fifth faster. It also needs no compilation
// for each number of rows. If b is stored as [n, k], the primitive is faster.
bool UseGemm(const MatmulShape& shape) {
  // Gemm computes a matrix of one column by a matrix-vector kernel, whose sums
  // depend on m. The bits, and so this choice, must not depend on m.
  return !shape.transpose_b && shape.n > 1;
}

// Our kernel has gemm's bits here, too, and only it can bypass the caches.
bool SumsColumns(const MatmulShape& shape) {
  return (shape.streams || !HasAvx512()) && shape.transpose_a &&
         !shape.transpose_b && shape.n > 1;
}

// Our kernel has gemm's bits here, too, but needs no packing.
bool HasFewRows(const MatmulShape& shape) {
  return shape.m <= kFewRows && !shape.transpose_a && !shape.transpose_b &&
         shape.n % 16 == 0;
}

// Gemm splits a deep k into blocks by rules that depend on m, so the order of a
// sum would depend on the other rows. Up to this depth there is one block.
constexpr int64_t kGemmDepth = kFloat32Depth;

void Gemm(const Block& block, const float* a, const float* b, float* c) {
  const auto& [m, n, k, transpose_a, transpose_b, in_panels, streams] =
      block.shape;
  for (int64_t begin = 0; begin < k; begin += kGemmDepth) {
    const float beta = begin > 0 || block.accumulate ? 1.0f : 0.0f;
    CHECK(dnnl_sgemm(transpose_a ? 'T' : 'N', 'N', m, n,
                     std::min(kGemmDepth, k - begin), 1.0f,
                     a + begin * (transpose_a ? block.a_stride : 1),
                     block.a_stride, b + begin * block.b_stride, block.b_stride,
                     beta, c, block.c_stride) == dnnl_success);
  }
}

template <typename T>
void CopyRows(int64_t rows, int64_t size, const T* from, int64_t from_stride,
              T* to, int64_t to_stride) {
  for (int64_t r = 0; r < rows; ++r) {
    std::copy_n(from + r * from_stride, size, to + r * to_stride);
  }
}

// A single row would go to the matrix-vector kernel, so add a second one.
void GemmRow(const Block& block, const float* a, const float* b, float* c) {
  const auto& [m, n, k, transpose_a, transpose_b, in_panels, streams] =
      block.shape;
  thread_local std::vector<float> rows, results;
  rows.assign(2 * k, 0.0f);
  results.assign(2 * n, 0.0f);
  CopyRows(transpose_a ? k : 1, transpose_a ? 1 : k, a, block.a_stride,
           rows.data(), transpose_a ? 1 : k);
  if (block.accumulate) std::copy_n(c, n, results.data());
  Gemm({.shape = {.m = 2, .n = n, .k = k},
        .a_stride = k,
        .b_stride = block.b_stride,
        .c_stride = n,
        .accumulate = block.accumulate},
       rows.data(), b, results.data());
  std::copy_n(results.data(), n, c);
}

// The stored rows contiguously: the matrix itself, or a copy in `buffer`.
const float* Dense(int64_t rows, int64_t size, const float* from,
                   int64_t stride, std::vector<float>& buffer) {
  if (stride == size) return from;
  buffer.resize(rows * size);
  CopyRows(rows, size, from, stride, buffer.data(), size);
  return buffer.data();
}

// Uses the matmul primitive, which has its better kernels for dense matrices
// only.
void Execute(const Block& block, const float* a, const float* b, float* c) {
  const auto& [m, n, k, transpose_a, transpose_b, in_panels, streams] =
      block.shape;
  thread_local std::vector<float> dense_a, dense_b, dense_c;
  a = Dense(transpose_a ? k : m, transpose_a ? m : k, a, block.a_stride,
            dense_a);
  b = Dense(transpose_b ? n : k, transpose_b ? k : n, b, block.b_stride,
            dense_b);
  PrimitiveCache& cache = ThreadCache();
  if (block.c_stride == n) {
    return cache.Execute(block.shape, a, b, c, block.accumulate);
  }
  dense_c.resize(m * n);
  if (block.accumulate) CopyRows(m, n, c, block.c_stride, dense_c.data(), n);
  cache.Execute(block.shape, a, b, dense_c.data(), block.accumulate);
  CopyRows(m, n, dense_c.data(), n, c, block.c_stride);
}

void Multiply(const Block& block, const float* a, const float* b, float* c) {
  if (block.shape.b_in_panels) {
    return MultiplyPanels(
        block.shape.m, block.shape.n, block.shape.k, a, block.a_stride, b, c,
        block.c_stride, block.accumulate,
        block.shape.transpose_b ? TransposedDepth(block.shape.k)
                                : kFloat32Depth);
  }
  if (HasPanels() && SumsColumns(block.shape)) {
    return MultiplyColumns(block.shape.m, block.shape.n, block.shape.k, a,
                           block.a_stride, b, block.b_stride, c, block.c_stride,
                           block.accumulate, block.shape.streams);
  }
  if (HasPanels() && HasFewRows(block.shape)) {
    return MultiplyFewRows(block.shape.m, block.shape.n, block.shape.k, a,
                           block.a_stride, b, block.b_stride, c, block.c_stride,
                           block.accumulate);
  }
  if (!HasAvx512()) {
    const auto& [m, n, k, transpose_a, transpose_b, in_panels, streams] =
        block.shape;
    return PlainMatmul(
        m, n, k,
        {a, transpose_a ? 1 : block.a_stride, transpose_a ? block.a_stride : 1},
        {b, transpose_b ? 1 : block.b_stride, transpose_b ? block.b_stride : 1},
        c, block.c_stride, block.accumulate,
        transpose_b ? TransposedDepth(k) : kFloat32Depth);
  }
  ThreadCache();  // sets the thread count
  if (!UseGemm(block.shape)) {
    Execute(block, a, b, c);
  } else if (block.shape.m == 1) {
    GemmRow(block, a, b, c);
  } else {
    Gemm(block, a, b, c);
  }
}

void Widen(int64_t rows, int64_t size, const BFloat16* from, int64_t stride,
           std::vector<float>& to) {
  to.resize(rows * size);
  for (int64_t r = 0; r < rows; ++r) {
    CastRow(from + r * stride, to.data() + r * size, size);
  }
}

void Multiply(const Block& block, const BFloat16* a, const BFloat16* b,
              float* c) {
  const auto& [m, n, k, transpose_a, transpose_b, in_panels, streams] =
      block.shape;
  if (in_panels) {
    return MultiplyPanels(m, n, k, a, block.a_stride, b, c, block.c_stride,
                          block.accumulate,
                          transpose_b ? TransposedDepth(k) : kFloat32Depth);
  }
  if (HasAvx512Bf16()) {
    if (transpose_a) {
      thread_local std::vector<BFloat16> rows_of_b;
      if (transpose_b) {
        rows_of_b.resize(k * n);
        for (int64_t i = 0; i < k; ++i) {
          CopyRows(n, 1, b + i, block.b_stride, rows_of_b.data() + i * n, 1);
        }
      }
      return MultiplyColumns(m, n, k, a, block.a_stride,
                             transpose_b ? rows_of_b.data() : b,
                             transpose_b ? n : block.b_stride, c,
                             block.c_stride, block.accumulate, streams);
    }
    if (transpose_b) {
      return MultiplyTransposed(m, n, k, a, block.a_stride, b, block.b_stride,
                                c, block.c_stride, block.accumulate);
    }
    return MultiplyRows(m, n, k, a, block.a_stride, b, block.b_stride, c,
                        block.c_stride, block.accumulate);
  }
  // Without the instructions, oneDNN has no bfloat16 products or only slow
  // ones, so compute in float32.
  thread_local std::vector<float> wide_a, wide_b;
  Block wide = block;
  wide.a_stride = transpose_a ? m : k;
  wide.b_stride = transpose_b ? k : n;
  Widen(transpose_a ? k : m, wide.a_stride, a, block.a_stride, wide_a);
  Widen(transpose_b ? n : k, wide.b_stride, b, block.b_stride, wide_b);
  Multiply(wide, wide_a.data(), wide_b.data(), c);
}

// A tile has about kTileWeights elements of b and at least kLeastColumns
// columns: enough work, even with few rows, that neither the hand-over to a
// thread nor the set-up of a oneDNN call matters. oneDNN's kernels process 48
// columns at a time.
constexpr int64_t kTileWeights = 128 << 10;
constexpr int64_t kLeastColumns = 240;
constexpr int64_t kColumnStep = kPanelColumns;

// Rows of a tile: kMostRows, or down to kLeastRows in products that have few
// tiles with much work.
constexpr int64_t kMostRows = 256;
constexpr int64_t kLeastRows = 64;
constexpr int64_t kManyTiles = 8;
constexpr int64_t kMuchWork = 8 << 20;  // multiplications

// The grid of a product's tiles.
struct Grid {
  int64_t columns;  // of a tile; the last one may have one more
  int64_t rows = kMostRows;
  int64_t across, down;

  explicit Grid(const MatmulShape& shape) {
    const int64_t parts = std::max<int64_t>(
        1, std::min(shape.n * shape.k / kTileWeights, shape.n / kLeastColumns));
    columns = (shape.n / parts + kColumnStep - 1) / kColumnStep * kColumnStep;
    // No tile has a single column, which would be multiplied in another way.
    across = std::max<int64_t>(1, (shape.n + columns - 2) / columns);
    while (rows > kLeastRows && shape.m * across < kManyTiles * rows &&
           rows * columns * shape.k > kMuchWork) {
      rows /= 2;
    }
    down = (shape.m + rows - 1) / rows;
  }
};

// Offset of a column of b; in panels, it must be the first of its panel.
template <typename T>
int64_t OffsetOfColumn(const MatmulShape& shape, int64_t column) {
  if (shape.b_in_panels) return PanelOffset<T>(shape.k, column);
  return column * (shape.transpose_b ? shape.k : 1);
}

// The position and size of a tile in the result.
struct Tile {
  int64_t row, column, m, n;

  Tile(const MatmulShape& shape, int64_t tile) {
    const Grid grid(shape);
    const bool is_last = tile % grid.across == grid.across - 1;
    row = tile / grid.across * grid.rows;
    column = tile % grid.across * grid.columns;
    m = std::min(grid.rows, shape.m - row);
    n = is_last ? shape.n - column : grid.columns;
  }
};

template <typename T>
void MultiplyTile(const MatmulShape& shape, int64_t tile, const T* a,
                  const T* b, float* c, bool accumulate) {
  const auto [row, column, m, n] = Tile(shape, tile);
  Block block{.shape = shape,
              .a_stride = shape.transpose_a ? shape.m : shape.k,
              .b_stride = shape.transpose_b ? shape.k : shape.n,
              .c_stride = shape.n,
              .accumulate = accumulate};
  block.shape.m = m;
  block.shape.n = n;
  float* const to = c + row * shape.n + column;
  if (shape.k > 0) {
    Multiply(block, a + row * (shape.transpose_a ? 1 : shape.k),
             b + OffsetOfColumn<T>(shape, column), to);
  } else if (!accumulate) {
    CHECK(n == shape.n);
    std::memset(to, 0, m * n * sizeof(float));
  }
}

template <typename T>
void MultiplyBatch(const MatmulShape& shape, int64_t batch, const T* a,
                   const T* b, float* c, bool accumulate) {
  const int64_t tiles = MatmulTiles(shape);
  ParallelFor(batch * tiles, [&](int64_t i) {
    const int64_t product = i / tiles;
    MultiplyTile(shape, i % tiles, a + product * shape.m * shape.k,
                 b + product * shape.k * shape.n,
                 c + product * shape.m * shape.n, accumulate);
  });
}

// Whether a bfloat16 b stored as [k, n] is packed once in advance: otherwise
// each of the several tiles with the same columns would pack them.
bool PacksOnce(const MatmulShape& shape) {
  return HasPanels() && !shape.transpose_a && !shape.transpose_b &&
         !shape.b_in_panels && shape.k % 2 == 0 && shape.n % 16 == 0 &&
         shape.m > 0 && shape.n > 0 && Grid(shape).down > 1;
}

}  // namespace

void InitCompute() { ThreadCache(); }

int64_t MatmulTiles(const MatmulShape& shape) {
  CHECK(shape.m >= 0 && shape.n >= 0 && shape.k >= 0);
  CHECK(!shape.b_in_panels ||
        (shape.k % 2 == 0 && shape.n % 16 == 0 && !shape.transpose_a));
  if (shape.m == 0 || shape.n == 0) return 0;
  const Grid grid(shape);
  return grid.across * grid.down;
}

void MatmulTile(const MatmulShape& shape, int64_t tile, const float* a,
                const float* b, float* c, bool accumulate) {
  MultiplyTile(shape, tile, a, b, c, accumulate);
}

void MatmulTile(const MatmulShape& shape, int64_t tile, const BFloat16* a,
                const BFloat16* b, float* c, bool accumulate) {
  MultiplyTile(shape, tile, a, b, c, accumulate);
}

void MatmulTile(const MatmulShape& shape, int64_t tile, const Int8Rows& a,
                int64_t first_row, const int8_t* b, float* c) {
  CHECK(a.k() == shape.k);
  const auto [row, column, m, n] = Tile(shape, tile);
  MultiplyInt8(m, n, a, first_row + row, b + Int8PanelOffset(shape.k, column),
               c + row * shape.n + column, shape.n);
}

void Matmul(const MatmulShape& shape, const float* a, const float* b, float* c,
            bool accumulate) {
  BatchMatmul(shape, 1, a, b, c, accumulate);
}

void Matmul(const MatmulShape& shape, const BFloat16* a, const BFloat16* b,
            float* c, bool accumulate) {
  BatchMatmul(shape, 1, a, b, c, accumulate);
}

void BatchMatmul(const MatmulShape& shape, int64_t batch, const float* a,
                 const float* b, float* c, bool accumulate) {
  MultiplyBatch(shape, batch, a, b, c, accumulate);
}

void BatchMatmul(const MatmulShape& shape, int64_t batch, const BFloat16* a,
                 const BFloat16* b, float* c, bool accumulate) {
  if (batch != 1 || !PacksOnce(shape)) {
    return MultiplyBatch(shape, batch, a, b, c, accumulate);
  }
  const std::shared_ptr<std::byte> buffer =
      AllocateBuffer(shape.k * shape.n * sizeof(BFloat16));
  auto* const panels = reinterpret_cast<BFloat16*>(buffer.get());
  PackPanels(shape.k, shape.n, b, panels);
  MatmulShape packed = shape;
  packed.b_in_panels = true;
  MultiplyBatch(packed, 1, a, std::as_const(panels), c, accumulate);
}

}  // namespace gshard
