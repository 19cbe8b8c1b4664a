#include "services/ops/dropout.h"

#include "services/base/check.h"
#include "services/base/random.h"
#include "services/ops/dropout_mask.h"
#include "services/ops/reuse.h"
#include "services/ops/simd.h"

namespace gshard {
namespace {

// Elements of which the first is number `start` of the mask.
GSHARD_SIMD void DropoutRow(const float* x, float* out, int64_t size,
                            uint64_t start, DropoutMask mask) {
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) out[i] = x[i] * mask.Factor(start + i);
}

}  // namespace

Tensor Dropout(Tensor x, float rate, uint64_t key) {
  CHECK(rate >= 0.0f && rate < 1.0f);
  if (rate == 0.0f) return x;
  Tensor out = ReuseOrAllocate(x);
  DropoutRow(x.f32(), out.f32(), x.size(), /*start=*/0, DropoutMask(rate, key));
  return out;
}

Tensor DropoutRows(Tensor x, const Tensor& rows, float rate, uint64_t key) {
  CHECK(rate >= 0.0f && rate < 1.0f && x.rank() == 2);
  if (rate == 0.0f) return x;
  Tensor out = ReuseOrAllocate(x);
  const DropoutMask mask(rate, key);
  const int64_t H = x.dim(1);
  for (int64_t r = 0; r < x.dim(0); ++r) {
    DropoutRow(x.f32() + r * H, out.f32() + r * H, H,
               static_cast<uint64_t>(rows.i32()[r]) * H, mask);
  }
  return out;
}

}  // namespace gshard
