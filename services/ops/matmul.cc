#include "services/ops/matmul.h"

#include <omp.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <tuple>
#include <type_traits>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "services/base/check.h"
#include "services/ops/cast.h"
#include "services/tensor/buffer.h"

namespace gshard {
namespace {

using dnnl::memory;

// A new shape takes 200 to 300 us and about 60 KiB to compile, a cached one
// nothing. The bound is for shapes that never repeat.
constexpr size_t kMaxCachedShapes = 1024;

// Multiplications in a product that takes about as long as compiling its
// shape. Smaller ones share shapes; else each number of rows that comes for the
// first time, which goes on for days, would take that time and memory.
constexpr int64_t kCompileWork = 8 << 20;

// The rows of the shape that a product of so many shares: any number up to 64,
// above it sixteen in each octave, so that at most a sixteenth is for nothing.
int64_t SharedRows(int64_t m) {
  if (m <= 64) return m;
  const int64_t step = std::bit_floor(static_cast<uint64_t>(m - 1)) / 16;
  return (m + step - 1) / step * step;
}

using Key =
    std::tuple<int64_t, int64_t, int64_t, bool, bool, bool, memory::data_type>;

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
  // oneDNN captures the calling thread's OpenMP thread count when it compiles.
  PrimitiveCache() : stream_(Engine()) { omp_set_num_threads(1); }

  template <typename T>
  void Execute(const MatmulShape& shape, const T* a, const T* b, float* c,
               bool accumulate) {
    constexpr auto kType = std::is_same_v<T, BFloat16> ? memory::data_type::bf16
                                                       : memory::data_type::f32;
    MatmulShape shared = shape;
    if (!shape.transpose_a && shape.m * shape.n * shape.k < kCompileWork) {
      shared.m = SharedRows(shape.m);
    }
    if (shared.m == shape.m) return Run(shape, kType, a, b, c, accumulate);
    const size_t a_bytes = shape.m * shape.k * sizeof(T);
    const size_t c_bytes = shape.m * shape.n * sizeof(float);
    const std::shared_ptr<std::byte> more_a =
        AllocateBuffer(shared.m * shape.k * sizeof(T));
    const std::shared_ptr<std::byte> more_c =
        AllocateBuffer(shared.m * shape.n * sizeof(float));
    std::memcpy(more_a.get(), a, a_bytes);
    // Zeros, as arithmetic on some leftovers is slow.
    std::memset(more_a.get() + a_bytes, 0,
                (shared.m - shape.m) * shape.k * sizeof(T));
    auto* const sums = reinterpret_cast<float*>(more_c.get());
    if (accumulate) {
      std::memcpy(sums, c, c_bytes);
      std::fill_n(sums + shape.m * shape.n, (shared.m - shape.m) * shape.n,
                  0.0f);
    }
    Run(shared, kType, more_a.get(), b, sums, accumulate);
    std::memcpy(c, sums, c_bytes);
  }

 private:
  // Elements of a and b are of `type`.
  void Run(const MatmulShape& shape, memory::data_type type, const void* a,
           const void* b, float* c, bool accumulate) {
    Primitive& primitive = Get(shape, type, accumulate);
    primitive.a.set_data_handle(const_cast<void*>(a));
    primitive.b.set_data_handle(const_cast<void*>(b));
    primitive.c.set_data_handle(c);
    primitive.matmul.execute(stream_, {{DNNL_ARG_SRC, primitive.a},
                                       {DNNL_ARG_WEIGHTS, primitive.b},
                                       {DNNL_ARG_DST, primitive.c}});
    stream_.wait();
  }

  Primitive& Get(const MatmulShape& shape, memory::data_type type,
                 bool accumulate) {
    const Key key{shape.m,           shape.n,    shape.k, shape.transpose_a,
                  shape.transpose_b, accumulate, type};
    auto found = primitives_.find(key);
    if (found != primitives_.end()) return found->second;
    if (primitives_.size() >= kMaxCachedShapes) primitives_.clear();
    return primitives_.emplace(key, Compile(shape, type, accumulate))
        .first->second;
  }

  static memory::desc Matrix(int64_t rows, int64_t columns,
                             memory::data_type type, bool transpose) {
    return memory::desc(
        {rows, columns}, type,
        transpose ? memory::dims{1, rows} : memory::dims{columns, 1});
  }

  static Primitive Compile(const MatmulShape& shape, memory::data_type type,
                           bool accumulate) {
    omp_set_num_threads(1);
    const memory::desc a = Matrix(shape.m, shape.k, type, shape.transpose_a);
    const memory::desc b = Matrix(shape.k, shape.n, type, shape.transpose_b);
    const memory::desc c =
        Matrix(shape.m, shape.n, memory::data_type::f32, false);
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

// oneDNN has two ways to multiply. Where b is stored as [k, n], gemm packs it
// at less cost than the matmul primitive: with few rows on weights that come
// from memory, as experts have them, it is a fifth faster. Weights stored the
// other way are the primitive's strength.
bool UseGemm(const MatmulShape& shape) {
  // Gemm gives a matrix of one column to a matrix-vector kernel, whose sums
  // depend on m; so must this choice not.
  return !shape.transpose_a && !shape.transpose_b && shape.n > 1;
}

// Gemm cuts a deep k into blocks by rules that look at m, so that the order of
// a sum would depend on the rows beside it. Up to this depth it has one block.
constexpr int64_t kGemmDepth = 256;

void Gemm(int64_t m, int64_t n, int64_t k, const float* a, const float* b,
          float* c, bool accumulate) {
  for (int64_t begin = 0; begin < k; begin += kGemmDepth) {
    const float beta = begin > 0 || accumulate ? 1.0f : 0.0f;
    CHECK(dnnl_sgemm('N', 'N', m, n, std::min(kGemmDepth, k - begin), 1.0f,
                     a + begin, k, b + begin * n, n, beta, c,
                     n) == dnnl_success);
  }
}

// One row alone would go to the matrix-vector kernel: it gets a second one.
void GemmRow(int64_t n, int64_t k, const float* a, const float* b, float* c,
             bool accumulate) {
  thread_local std::vector<float> rows, results;
  rows.assign(2 * k, 0.0f);
  results.assign(2 * n, 0.0f);
  std::copy_n(a, k, rows.data());
  if (accumulate) std::copy_n(c, n, results.data());
  Gemm(2, n, k, rows.data(), b, results.data(), accumulate);
  std::copy_n(results.data(), n, c);
}

// Without the instructions oneDNN has no products of bfloat16, or slow ones.
bool HasBFloat16() {
  static const bool has = [] {
    const dnnl_cpu_isa_t isa = dnnl_get_effective_cpu_isa();
    return isa == dnnl_cpu_isa_avx512_core_bf16 ||
           isa == dnnl_cpu_isa_avx512_core_amx;
  }();
  return has;
}

// Whether there is something to add up; if not, c is set.
bool HasSums(const MatmulShape& shape, float* c, bool accumulate) {
  CHECK(shape.m >= 0 && shape.n >= 0 && shape.k >= 0);
  if (shape.m == 0 || shape.n == 0) return false;
  if (shape.k > 0) return true;
  if (!accumulate) std::fill_n(c, shape.m * shape.n, 0.0f);
  return false;
}

template <typename T>
void MultiplyBatch(const MatmulShape& shape, int64_t batch, const T* a,
                   const T* b, float* c, bool accumulate) {
  for (int64_t i = 0; i < batch; ++i) {
    Matmul(shape, a + i * shape.m * shape.k, b + i * shape.k * shape.n,
           c + i * shape.m * shape.n, accumulate);
  }
}

}  // namespace

void InitCompute() { ThreadCache(); }

void Matmul(const MatmulShape& shape, const BFloat16* a, const BFloat16* b,
            float* c, bool accumulate) {
  if (!HasSums(shape, c, accumulate)) return;
  if (HasBFloat16()) {
    ThreadCache().Execute(shape, a, b, c, accumulate);
    return;
  }
  thread_local std::vector<float> wide_a, wide_b;
  wide_a.resize(shape.m * shape.k);
  wide_b.resize(shape.k * shape.n);
  CastRow(a, wide_a.data(), shape.m * shape.k);
  CastRow(b, wide_b.data(), shape.k * shape.n);
  Matmul(shape, wide_a.data(), wide_b.data(), c, accumulate);
}

void Matmul(const MatmulShape& shape, const float* a, const float* b, float* c,
            bool accumulate) {
  if (!HasSums(shape, c, accumulate)) return;
  PrimitiveCache& cache = ThreadCache();  // also sets the thread count
  if (!UseGemm(shape)) {
    cache.Execute(shape, a, b, c, accumulate);
  } else if (shape.m == 1) {
    GemmRow(shape.n, shape.k, a, b, c, accumulate);
  } else {
    Gemm(shape.m, shape.n, shape.k, a, b, c, accumulate);
  }
}

void BatchMatmul(const MatmulShape& shape, int64_t batch, const float* a,
                 const float* b, float* c, bool accumulate) {
  MultiplyBatch(shape, batch, a, b, c, accumulate);
}

void BatchMatmul(const MatmulShape& shape, int64_t batch, const BFloat16* a,
                 const BFloat16* b, float* c, bool accumulate) {
  MultiplyBatch(shape, batch, a, b, c, accumulate);
}

}  // namespace gshard
