#include "services/ops/cast.h"

#include "services/base/check.h"
#include "services/base/parallel.h"
#include "services/ops/simd.h"

namespace gshard {

GSHARD_SIMD void CastRow(const float* x, BFloat16* out, int64_t size) {
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) out[i] = ToBFloat16(x[i]);
}

GSHARD_SIMD void CastRow(const BFloat16* x, float* out, int64_t size) {
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) out[i] = ToFloat(x[i]);
}

Tensor Cast(const Tensor& x, ElementType type) {
  if (x.type() == type) return x;
  Tensor out(type, x.dims());
  ParallelForChunks(x.size(), ChunkSize(1), [&](int64_t begin, int64_t end) {
    if (type == ElementType::kBFloat16) {
      CastRow(x.f32() + begin, out.data<BFloat16>() + begin, end - begin);
    } else {
      CHECK(type == ElementType::kFloat32);
      CastRow(x.data<BFloat16>() + begin, out.f32() + begin, end - begin);
    }
  });
  return out;
}

}  // namespace gshard
