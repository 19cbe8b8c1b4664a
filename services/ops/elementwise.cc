#include "services/ops/elementwise.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "services/base/check.h"
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

// A block of a fixed size has no rest, which other instructions would compute.
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
    out[i] = ToFloat(x[i]) < 0.0f ? BFloat16() : x[i];
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
  if (b.size() == a.size()) {
    row(a.f32(), b.f32(), out.f32(), a.size());
  } else if (b.size() == 1) {
    constant(a.f32(), b.f32()[0], out.f32(), a.size());
  } else {
    for (int64_t i = 0; i < a.size(); i += b.size()) {
      row(a.f32() + i, b.f32(), out.f32() + i, b.size());
    }
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
  MultiplyConstant(x.f32(), factor, out.f32(), x.size());
  return out;
}

Tensor Exp(Tensor x) {
  Tensor out = ReuseOrAllocate(x);
  float block[kExpBlock] = {};
  float powers[kExpBlock];
  for (int64_t i = 0; i < x.size(); i += kExpBlock) {
    const int64_t count = std::min(kExpBlock, x.size() - i);
    std::copy_n(x.f32() + i, count, block);
    ExpBlock(block, powers);
    for (int64_t j = 0; j < count; ++j) {
      // Where exp.h stops short.
      const bool extreme = block[j] > 88.0f || block[j] < -87.0f;
      out.f32()[i + j] = extreme ? std::exp(block[j]) : powers[j];
    }
  }
  return out;
}

Tensor Relu(Tensor x) {
  Tensor out = ReuseOrAllocate(x);
  if (x.type() == ElementType::kBFloat16) {
    ReluRow(std::as_const(x).data<BFloat16>(), out.data<BFloat16>(), x.size());
  } else {
    ReluRow(x.f32(), out.f32(), x.size());
  }
  return out;
}

Tensor ReluGradient(const Tensor& y, Tensor dy) {
  CHECK(y.size() == dy.size());
  Tensor out = ReuseOrAllocate(dy);
  if (y.type() == ElementType::kBFloat16) {
    ReluGradientRow(y.data<BFloat16>(), dy.f32(), out.f32(), dy.size());
  } else {
    ReluGradientRow(y.f32(), dy.f32(), out.f32(), dy.size());
  }
  return out;
}

Tensor SumToSuffix(const Tensor& x, const Dims& dims) {
  CHECK(IsSuffix(dims, x.dims()));
  if (x.dims() == dims) return x;
  Tensor sum = Tensor::Zeros(ElementType::kFloat32, dims);
  if (sum.size() == 1) {
    sum.f32()[0] = SumRow(x.f32(), x.size());
    return sum;
  }
  for (int64_t i = 0; i < x.size(); i += sum.size()) {
    AddRow(sum.f32(), x.f32() + i, sum.f32(), sum.size());
  }
  return sum;
}

}  // namespace gshard
