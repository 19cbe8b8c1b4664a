#include "tests/reference/paged_attention.h"

#include <algorithm>

#include "tests/reference/attention.h"

namespace gshard::reference {
namespace {

Tensor Gather(const Tensor& cache, const int32_t* pages, int64_t length) {
  const int64_t P = cache.dim(1), width = cache.dim(2) * cache.dim(3);
  Tensor gathered(ElementType::kFloat32,
                  {1, length, cache.dim(2), cache.dim(3)});
  for (int64_t j = 0; j < length; ++j) {
    std::copy_n(cache.f32() + (pages[j / P] * P + j % P) * width, width,
                gathered.f32() + j * width);
  }
  return gathered;
}

}  // namespace

Tensor PagedAttention(const Tensor& q, const Tensor& keys, const Tensor& values,
                      const Tensor& pages, const Tensor& lengths, float scale) {
  const int64_t width = q.dim(2) * q.dim(3), T = pages.dim(1);
  Tensor out = Tensor::Zeros(ElementType::kFloat32, q.dims());
  for (int64_t r = 0; r < q.dim(0); ++r) {
    const int32_t length = lengths.i32()[r];
    const int32_t* const table = pages.i32() + r * T;
    if (length == 0) continue;
    const AttentionResult row =
        reference::Attention(q.Rows(r, r + 1), Gather(keys, table, length),
                             Gather(values, table, length),
                             Tensor::Ints({1}, {length}), {.scale = scale});
    std::copy_n(row.out.f32(), width, out.f32() + r * width);
  }
  return out;
}

}  // namespace gshard::reference
