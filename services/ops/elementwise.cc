#include "services/ops/elementwise.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "services/base/check.h"
#include "services/base/parallel.h"
#include "services/ops/exp.h"
#include "services/ops/reuse.h"
#include "services/ops/simd.h"

namespace gshard {
namespace {

GSHARD_SIMD void MultiplyRow(const float* a, const float* b, float* out,
                             int64_t size) {
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) out[i] = a[i] * b[i];
}

GSHARD_SIMD void SubtractRow(const float* a, const float* b, float* out,
                             int64_t size) {
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) out[i] = a[i] - b[i];
}

GSHARD_SIMD void DivideRow(const float* a, const float* b, float* out,
                           int64_t size) {
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) out[i] = a[i] / b[i];
}

GSHARD_SIMD void SubtractConstant(const float* a, float b, float* out,
                                  int64_t size) {
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) out[i] = a[i] - b;
}

GSHARD_SIMD void DivideConstant(const float* a, float b, float* out,
                                int64_t size) {
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) out[i] = a[i] / b;
}

// A block of fixed size has no loop remainder, for which the compiler would use
// other instructions.
constexpr int64_t kExpBlock = 64;
GSHARD_SIMD void ExpBlock(const float* x, float* out) {
#pragma omp simd
  for (int64_t i = 0; i < kExpBlock; ++i) out[i] = Exp(x[i]);
}

GSHARD_SIMD void AddConstant(const float* a, float b, float* out,
                             int64_t size) {
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) out[i] = a[i] + b;
}

GSHARD_SIMD void MultiplyConstant(const float* a, float b, float* out,
                                  int64_t size) {
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) out[i] = a[i] * b;
}

GSHARD_SIMD void ReluRow(const float* x, float* out, int64_t size) {
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) out[i] = x[i] < 0.0f ? 0.0f : x[i];
}

GSHARD_SIMD void ReluGradientRow(const float* y, const float* dy, float* out,
                                 int64_t size) {
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) out[i] = y[i] > 0.0f ? dy[i] : 0.0f;
}

GSHARD_SIMD void ReluRow(const BFloat16* x, BFloat16* out, int64_t size) {
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) {
    out[i].bits = ToFloat(x[i]) < 0.0f ? 0 : x[i].bits;
  }
}

GSHARD_SIMD void ReluGradientRow(const BFloat16* y, const float* dy, float* out,
                                 int64_t size) {
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) {
    out[i] = ToFloat(y[i]) > 0.0f ? dy[i] : 0.0f;
  }
}

GSHARD_SIMD float SumRow(const float* x, int64_t size) {
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < size; ++i) sum += x[i];
  return sum;
}

// Calls body(first, size) for parts of x. Parts begin at multiples of the
// vector width.
template <typename Body>
void ForElements(const Tensor& x, const Body& body) {
  ParallelForChunks(x.size(), ChunkSize(1), [&](int64_t begin, int64_t end) {
    body(begin, end - begin);
  });
}

using RowFunction = void (*)(const float*, const float*, float*, int64_t);
using ConstantFunction = void (*)(const float*, float, float*, int64_t);

Tensor ApplySuffix(Tensor a, Tensor b, RowFunction row,
                   ConstantFunction constant) {
  CHECK(IsSuffix(b.dims(), a.dims()));
  Tensor out;
  if (!a.unique() && b.unique() && b.size() == a.size()) {
    out = b.Reshaped(a.dims());
  } else {
    out = ReuseOrAllocate(a);
  }
  const float *x = a.f32(), *y = b.f32();
  float* const z = out.f32();
  if (b.size() == a.size()) {
    ForElements(
        a, [=](int64_t i, int64_t size) { row(x + i, y + i, z + i, size); });
  } else if (b.size() == 1) {
    ForElements(
        a, [=](int64_t i, int64_t size) { constant(x + i, *y, z + i, size); });
  } else if (b.size() > 0) {
    const int64_t columns = b.size();
    ParallelForChunks(a.size() / columns, ChunkSize(columns),
                      [=](int64_t begin, int64_t end) {
                        for (int64_t r = begin; r < end; ++r) {
                          row(x + r * columns, y, z + r * columns, columns);
                        }
                      });
  }
  return out;
}

}  // namespace

GSHARD_SIMD void AddRow(const float* a, const float* b, float* out,
                        int64_t size) {
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) out[i] = a[i] + b[i];
}

bool IsSuffix(const Dims& suffix, const Dims& dims) {
  return suffix.size() <= dims.size() &&
         std::equal(suffix.begin(), suffix.end(), dims.end() - suffix.size());
}

Tensor Add(Tensor a, Tensor b) {
  return ApplySuffix(std::move(a), std::move(b), AddRow, AddConstant);
}

Tensor Subtract(Tensor a, Tensor b) {
  return ApplySuffix(std::move(a), std::move(b), SubtractRow, SubtractConstant);
}

Tensor Divide(Tensor a, Tensor b) {
  return ApplySuffix(std::move(a), std::move(b), DivideRow, DivideConstant);
}

Tensor Multiply(Tensor a, Tensor b) {
  return ApplySuffix(std::move(a), std::move(b), MultiplyRow, MultiplyConstant);
}

Tensor Scale(Tensor x, float factor) {
  Tensor out = ReuseOrAllocate(x);
  ForElements(x, [&](int64_t i, int64_t size) {
    MultiplyConstant(x.f32() + i, factor, out.f32() + i, size);
  });
  return out;
}

Tensor Exp(Tensor x) {
  Tensor out = ReuseOrAllocate(x);
  ForElements(x, [&](int64_t first, int64_t size) {
    float block[kExpBlock] = {};
    float powers[kExpBlock];
    for (int64_t i = first; i < first + size; i += kExpBlock) {
      const int64_t count = std::min(kExpBlock, first + size - i);
      std::copy_n(x.f32() + i, count, block);
      ExpBlock(block, powers);
      for (int64_t j = 0; j < count; ++j) {
        // Outside of the range in which Exp() is exact to 2 ulp.
        const bool extreme = block[j] > 88.0f || block[j] < -87.0f;
        out.f32()[i + j] = extreme ? std::exp(block[j]) : powers[j];
      }
    }
  });
  return out;
}

Tensor Relu(Tensor x) {
  Tensor out = ReuseOrAllocate(x);
  ForElements(x, [&](int64_t i, int64_t size) {
    if (x.type() == ElementType::kBFloat16) {
      ReluRow(std::as_const(x).data<BFloat16>() + i, out.data<BFloat16>() + i,
              size);
    } else {
      ReluRow(x.f32() + i, out.f32() + i, size);
    }
  });
  return out;
}

Tensor ReluGradient(const Tensor& y, Tensor dy) {
  CHECK(y.size() == dy.size());
  Tensor out = ReuseOrAllocate(dy);
  ForElements(dy, [&](int64_t i, int64_t size) {
    if (y.type() == ElementType::kBFloat16) {
      ReluGradientRow(y.data<BFloat16>() + i, dy.f32() + i, out.f32() + i,
                      size);
    } else {
      ReluGradientRow(y.f32() + i, dy.f32() + i, out.f32() + i, size);
    }
  });
  return out;
}

Tensor SumToSuffix(const Tensor& x, const Dims& dims) {
  CHECK(IsSuffix(dims, x.dims()));
  if (x.dims() == dims) return x;
  Tensor sum = Tensor::Zeros(ElementType::kFloat32, dims);
  // Not for a single column, which may be a part of several.
  if (dims.empty()) {
    sum.f32()[0] = SumRow(x.f32(), x.size());
    return sum;
  }
  if (sum.size() == 0) return sum;
  // Parallel over columns: each column is summed in the order of rows.
  const int64_t rows = x.size() / sum.size();
  ParallelForChunks(
      sum.size(), ColumnsOf(rows), [&](int64_t begin, int64_t end) {
        for (int64_t r = 0; r < rows; ++r) {
          AddRow(sum.f32() + begin, x.f32() + r * sum.size() + begin,
                 sum.f32() + begin, end - begin);
        }
      });
  return sum;
}

}  // namespace gshard
