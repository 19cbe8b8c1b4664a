#include "services/ops/dropout.h"

#include <utility>

#include "services/base/check.h"
#include "services/base/parallel.h"
#include "services/ops/dropout_mask.h"
#include "services/ops/reuse.h"
#include "services/ops/simd.h"

namespace gshard {
namespace {

// Drops elements [start, start + size) of a tensor.
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
  const DropoutMask mask(rate, key);
  ParallelForChunks(x.size(), ChunkSize(4), [&](int64_t begin, int64_t end) {
    DropoutRow(x.f32() + begin, out.f32() + begin, end - begin, begin, mask);
  });
  return out;
}

Tensor DropoutPart(Tensor x, absl::Span<const int64_t> begin,
                   absl::Span<const int64_t> whole, float rate, uint64_t key) {
  CHECK(rate >= 0.0f && rate < 1.0f);
  CHECK(static_cast<int>(begin.size()) == x.rank() &&
        begin.size() == whole.size());
  if (rate == 0.0f) return x;
  if (x.rank() == 0) return Dropout(std::move(x), rate, key);
  Tensor out = ReuseOrAllocate(x);
  const DropoutMask mask(rate, key);
  const int last = x.rank() - 1;
  const int64_t size = x.dim(last);
  const int64_t rows = size == 0 ? 0 : x.size() / size;
  for (int64_t r = 0; r < rows; ++r) {
    // The row-major index of the row's first element in the whole tensor,
    // computed from the last dimension to the first.
    uint64_t start = begin[last];
    uint64_t stride = whole[last];
    int64_t rest = r;
    for (int d = last - 1; d >= 0; --d) {
      start += (begin[d] + rest % x.dim(d)) * stride;
      stride *= whole[d];
      rest /= x.dim(d);
    }
    DropoutRow(x.f32() + r * size, out.f32() + r * size, size, start, mask);
  }
  return out;
}

Tensor DropoutRows(Tensor x, const Tensor& rows, float rate, uint64_t key) {
  const int64_t columns = x.dim(1);
  return DropoutRowsPart(std::move(x), rows, /*first_column=*/0, columns, rate,
                         key);
}

Tensor DropoutRowsPart(Tensor x, const Tensor& rows, int64_t first_column,
                       int64_t columns, float rate, uint64_t key) {
  CHECK(rate >= 0.0f && rate < 1.0f && x.rank() == 2);
  if (rate == 0.0f) return x;
  Tensor out = ReuseOrAllocate(x);
  const DropoutMask mask(rate, key);
  const int64_t H = x.dim(1);
  ParallelForChunks(
      x.dim(0), ChunkSize(4 * H), [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          DropoutRow(
              x.f32() + r * H, out.f32() + r * H, H,
              static_cast<uint64_t>(rows.i32()[r]) * columns + first_column,
              mask);
        }
      });
  return out;
}

}  // namespace gshard
