#include "services/ops/paged_attention.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "services/base/check.h"
#include "services/base/parallel.h"
#include "services/ops/attention.h"

namespace gshard {
namespace {

int64_t PagesFor(int64_t length, int64_t P) { return (length + P - 1) / P; }

// A view of part of a tensor that outlives it.
Tensor View(const float* data, Dims dims) {
  return Tensor::Wrap(ElementType::kFloat32, std::move(dims),
                      reinterpret_cast<std::byte*>(const_cast<float*>(data)),
                      nullptr);
}

// The positions of one row in one piece: in place if its pages follow each
// other, else copied to `buffer`.
const float* InOnePiece(const Tensor& cache, const int32_t* pages,
                        int64_t length, std::vector<float>& buffer) {
  const int64_t P = cache.dim(1), width = cache.dim(2) * cache.dim(3);
  const int64_t count = PagesFor(length, P);
  bool consecutive = true;
  for (int64_t t = 1; t < count; ++t) {
    consecutive = consecutive && pages[t] == pages[0] + t;
  }
  // A part of a model may have no heads.
  if (consecutive || width == 0) return cache.f32() + pages[0] * P * width;
  buffer.resize(length * width);
  for (int64_t t = 0; t < count; ++t) {
    std::memcpy(buffer.data() + t * P * width,
                cache.f32() + pages[t] * P * width,
                std::min(P, length - t * P) * width * sizeof(float));
  }
  return buffer.data();
}

}  // namespace

absl::Status CheckPages(const Tensor& pages, const Tensor& lengths, int64_t S,
                        int64_t P) {
  const int64_t T = pages.dim(1);
  for (int64_t r = 0; r < lengths.size(); ++r) {
    const int32_t length = lengths.i32()[r];
    if (length < 0 || length > T * P) {
      return absl::InvalidArgumentError(
          absl::StrCat("lengths must lie in [0, ", T * P, "], got ", length));
    }
    for (int64_t t = 0; t < PagesFor(length, P); ++t) {
      const int32_t page = pages.i32()[r * T + t];
      if (page < 0 || page >= S) {
        return absl::InvalidArgumentError(
            absl::StrCat("pages must lie in [0, ", S, "), got ", page));
      }
    }
  }
  return absl::OkStatus();
}

Tensor PagedAttention(const Tensor& q, const Tensor& keys, const Tensor& values,
                      const Tensor& pages, const Tensor& lengths, float scale) {
  CHECK(q.rank() == 4 && q.dim(1) == 1 && values.dims() == keys.dims());
  const int64_t R = q.dim(0), N = q.dim(2), D = q.dim(3);
  const int64_t P = keys.dim(1), T = pages.dim(1);
  Tensor out(ElementType::kFloat32, q.dims());
  // The hypotheses of a sentence see the same keys, and pack them once.
  std::vector<int64_t> firsts;
  int64_t most = 0;  // keys of a row
  for (int64_t first = 0, end; first < R; first = end) {
    const int32_t* const table = pages.i32() + first * T;
    const int64_t length = lengths.i32()[first];
    end = first + 1;
    while (
        end < R && lengths.i32()[end] == length &&
        std::equal(table, table + PagesFor(length, P), pages.i32() + end * T)) {
      ++end;
    }
    firsts.push_back(first);
    most = std::max(most, length);
  }
  const int64_t count = static_cast<int64_t>(firsts.size());
  firsts.push_back(R);
  const auto attend = [&](int64_t i) {
    const int64_t first = firsts[i], end = firsts[i + 1];
    const int32_t* const table = pages.i32() + first * T;
    const int64_t length = lengths.i32()[first];
    float* const to = out.f32() + first * N * D;
    if (length == 0) {
      std::fill_n(to, (end - first) * N * D, 0.0f);
      return;
    }
    thread_local std::vector<float> key_buffer, value_buffer;
    const AttentionResult result = Attention(
        View(q.f32() + first * N * D, {1, end - first, N, D}),
        View(InOnePiece(keys, table, length, key_buffer), {1, length, N, D}),
        View(InOnePiece(values, table, length, value_buffer),
             {1, length, N, D}),
        Tensor::Ints({1}, {static_cast<int32_t>(length)}), {.scale = scale},
        /*keep_probabilities=*/false);
    std::memcpy(to, result.out.f32(), result.out.bytes());
  };
  ParallelForChunks(count, ChunkSize(N * D * most / 2),
                    [&](int64_t begin, int64_t end) {
                      for (int64_t i = begin; i < end; ++i) attend(i);
                    });
  return out;
}

}  // namespace gshard
