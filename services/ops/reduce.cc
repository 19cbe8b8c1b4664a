#include "services/ops/reduce.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "services/base/check.h"
#include "services/base/parallel.h"
#include "services/ops/elementwise.h"
#include "services/ops/simd.h"
#include "services/ops/transpose.h"

namespace gshard {
namespace {

GSHARD_SIMD void SumRows(const float* x, int64_t rows, int64_t size,
                         float* sums) {
  for (int64_t r = 0; r < rows; ++r) {
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < size; ++i) sum += x[r * size + i];
    sums[r] = sum;
  }
}

// A group of neighbouring dimensions, either all new or all of x.
struct DimGroup {
  int64_t size;
  bool is_new;
};

// Writes x, which has `from_size` elements, to `to`, repeated over `groups`.
void Repeat(absl::Span<const DimGroup> groups, const float* from,
            int64_t from_size, float* to, int64_t to_size) {
  if (groups.empty()) {
    *to = *from;
    return;
  }
  const DimGroup group = groups[0];
  const int64_t part = to_size / group.size;
  if (group.is_new) {
    if (groups.size() == 1) {
      std::fill_n(to, group.size, *from);
      return;
    }
    Repeat(groups.subspan(1), from, from_size, to, part);
    for (int64_t i = 1; i < group.size; ++i) {
      std::memcpy(to + i * part, to, part * sizeof(float));
    }
  } else if (groups.size() == 1) {
    std::memcpy(to, from, group.size * sizeof(float));
  } else {
    const int64_t from_part = from_size / group.size;
    for (int64_t i = 0; i < group.size; ++i) {
      Repeat(groups.subspan(1), from + i * from_part, from_part, to + i * part,
             part);
    }
  }
}

}  // namespace

Tensor ReduceSum(const Tensor& x, absl::Span<const int> dims) {
  if (dims.empty()) return x;
  std::vector<int> reduced(dims.begin(), dims.end());
  std::vector<int> kept;
  Dims kept_dims;
  for (int d = 0, i = 0; d < x.rank(); ++d) {
    if (i < static_cast<int>(reduced.size()) && reduced[i] == d) {
      ++i;
    } else {
      kept.push_back(d);
      kept_dims.push_back(x.dim(d));
    }
  }
  CHECK(kept.size() + reduced.size() == x.dims().size());

  const int64_t rows = NumElements(kept_dims);
  if (!kept.empty() && kept.back() < reduced.front() && rows > 0) {
    Tensor sums(ElementType::kFloat32, kept_dims);
    const int64_t size = x.size() / rows;
    ParallelForChunks(rows, ChunkSize(size), [&](int64_t r, int64_t end) {
      SumRows(x.f32() + r * size, end - r, size, sums.f32() + r);
    });
    return sums;
  }
  std::vector<int> permutation = reduced;
  permutation.insert(permutation.end(), kept.begin(), kept.end());
  return SumToSuffix(Transpose(x, permutation), kept_dims);
}

Tensor Broadcast(const Tensor& x, const Dims& target,
                 absl::Span<const int> new_dims) {
  std::vector<DimGroup> groups;
  size_t next_new = 0;
  int next_old = 0;
  for (int d = 0; d < static_cast<int>(target.size()); ++d) {
    const bool is_new = next_new < new_dims.size() && new_dims[next_new] == d;
    if (is_new) {
      ++next_new;
    } else {
      CHECK(next_old < x.rank() && x.dim(next_old) == target[d]);
      ++next_old;
    }
    if (!groups.empty() && groups.back().is_new == is_new) {
      groups.back().size *= target[d];
    } else {
      groups.push_back({target[d], is_new});
    }
  }
  CHECK(next_new == new_dims.size() && next_old == x.rank());
  Tensor result(ElementType::kFloat32, target);
  if (result.size() > 0) {
    Repeat(groups, x.f32(), x.size(), result.f32(), result.size());
  }
  return result;
}

}  // namespace gshard
