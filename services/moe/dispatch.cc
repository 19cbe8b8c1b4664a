#include "services/moe/dispatch.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/base/parallel.h"
#include "services/base/status_macros.h"
#include "services/ops/cast.h"
#include "services/ops/simd.h"

namespace gshard {
namespace {

absl::Status Expect(const char* what, const char* expected, const Tensor& got) {
  return absl::InvalidArgumentError(
      absl::StrCat(what, ": expected ", expected, ", got ",
                   got.empty() ? "nothing" : got.TypeString()));
}

bool IsMatrix(const Tensor& tensor, ElementType type) {
  return !tensor.empty() && tensor.type() == type && tensor.rank() == 2;
}

bool IsRows(const Tensor& tensor) {
  return IsMatrix(tensor, ElementType::kFloat32) ||
         IsMatrix(tensor, ElementType::kBFloat16);
}

// Row r as float32, in `buffer` if it has to be converted.
const float* RowOf(const Tensor& rows, int64_t r, std::vector<float>& buffer) {
  const int64_t width = rows.dim(1);
  if (rows.type() == ElementType::kFloat32) return rows.f32() + r * width;
  buffer.resize(width);
  CastRow(rows.data<BFloat16>() + r * width, buffer.data(), width);
  return buffer.data();
}

GSHARD_SIMD void WeightedRow(const float* a, float wa, int64_t n, float* y) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = wa * a[i];
}

GSHARD_SIMD void WeightedSum(const float* a, float wa, const float* b, float wb,
                             int64_t n, float* y) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = wa * a[i] + wb * b[i];
}

// y = w * dy; returns dy . row.
GSHARD_SIMD float ScaleAndDot(const float* dy, const float* row, float w,
                              int64_t n, float* y) {
  float dot = 0.0f;
#pragma omp simd reduction(+ : dot)
  for (int64_t i = 0; i < n; ++i) {
    dot += dy[i] * row[i];
    y[i] = w * dy[i];
  }
  return dot;
}

// y[t] = sum over the token's rows of weight * row; weight may be null (1).
Tensor SumRows(const Tensor& rows, const std::vector<int32_t>& row_of_choice,
               const float* weight) {
  const int64_t tokens = static_cast<int64_t>(row_of_choice.size()) / 2;
  const int64_t width = rows.dim(1);
  Tensor y(ElementType::kFloat32, {tokens, width});
  ParallelForChunks(
      tokens, ChunkSize(2 * width), [&](int64_t begin, int64_t end) {
        std::vector<float> first_row, second_row;
        for (int64_t t = begin; t < end; ++t) {
          float* out = y.f32() + t * width;
          const int32_t r0 = row_of_choice[2 * t],
                        r1 = row_of_choice[2 * t + 1];
          const float w0 = weight == nullptr ? 1.0f : weight[2 * t];
          const float w1 = weight == nullptr ? 1.0f : weight[2 * t + 1];
          const float* first = r0 < 0 ? nullptr : RowOf(rows, r0, first_row);
          const float* second = r1 < 0 ? nullptr : RowOf(rows, r1, second_row);
          if (r0 >= 0 && r1 >= 0) {
            WeightedSum(first, w0, second, w1, width, out);
          } else if (r0 >= 0) {
            WeightedRow(first, w0, width, out);
          } else if (r1 >= 0) {
            WeightedRow(second, w1, width, out);
          } else {
            std::fill_n(out, width, 0.0f);
          }
        }
      });
  return y;
}

}  // namespace

absl::StatusOr<std::vector<int32_t>> RowsOfChoices(const char* what,
                                                   const Tensor& row_source,
                                                   int64_t num_tokens) {
  if (row_source.empty() || row_source.type() != ElementType::kInt32 ||
      row_source.rank() != 1) {
    return Expect(what, "row_source i32[R]", row_source);
  }
  std::vector<int32_t> row(2 * num_tokens, -1);
  for (int64_t r = 0; r < row_source.size(); ++r) {
    const int32_t source = row_source.i32()[r];
    if (source < 0 || source >= 2 * num_tokens || row[source] >= 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, ": expected distinct row sources in [0, ",
                       2 * num_tokens, "), got ", source, " in row ", r));
    }
    row[source] = static_cast<int32_t>(r);
  }
  return row;
}

absl::StatusOr<DispatchPlan> PlanDispatch(const Tensor& expert,
                                          const Tensor& slot,
                                          int64_t num_experts,
                                          int64_t group_size) {
  if (!IsMatrix(expert, ElementType::kInt32) || expert.dim(1) != 2) {
    return Expect("dispatch", "expert i32[T, 2]", expert);
  }
  if (!IsMatrix(slot, ElementType::kInt32) || slot.dims() != expert.dims()) {
    return Expect("dispatch", "slot i32[T, 2] as expert", slot);
  }
  const int64_t tokens = expert.dim(0);
  if (num_experts < 1 || group_size < 0 ||
      tokens > std::numeric_limits<int32_t>::max() / 2) {
    return absl::InvalidArgumentError(absl::StrCat(
        "dispatch: expected at least one expert, a group size of at least 0 "
        "and at most 2^30 tokens, got ",
        num_experts, ", ", group_size, " and ", tokens));
  }
  const int64_t group = std::min(group_size > 0 ? group_size : tokens, tokens);

  DispatchPlan plan;
  plan.group_sizes = Tensor::Zeros(ElementType::kInt32, {num_experts});
  int32_t* sizes = plan.group_sizes.i32();
  for (int64_t i = 0; i < 2 * tokens; ++i) {
    if (slot.i32()[i] < 0) continue;
    if (expert.i32()[i] < 0 || expert.i32()[i] >= num_experts ||
        slot.i32()[i] >= group) {
      return absl::InvalidArgumentError(
          absl::StrCat("dispatch: expected an expert below ", num_experts,
                       " and a slot below ", group, " for choice ", i, ", got ",
                       expert.i32()[i], " and ", slot.i32()[i]));
    }
    ++sizes[expert.i32()[i]];
  }
  std::vector<int32_t> next(num_experts);
  std::exclusive_scan(sizes, sizes + num_experts, next.begin(), 0);
  const int64_t rows =
      num_experts == 0 ? 0 : next.back() + sizes[num_experts - 1];
  plan.row_source = Tensor(ElementType::kInt32, {rows});

  // Two stable passes per group, by slot and then by expert; groups go in
  // order, so rows end up by (expert, group, slot).
  std::vector<int32_t> by_slot(2 * group);
  std::vector<int32_t> slot_begin(group + 1);
  for (int64_t begin = 0; begin < tokens; begin += group) {
    const int64_t end = std::min(begin + group, tokens);
    std::fill(slot_begin.begin(), slot_begin.end(), 0);
    for (int64_t i = 2 * begin; i < 2 * end; ++i) {
      if (slot.i32()[i] >= 0) ++slot_begin[slot.i32()[i] + 1];
    }
    std::partial_sum(slot_begin.begin(), slot_begin.end(), slot_begin.begin());
    const int32_t kept = slot_begin.back();
    for (int64_t i = 2 * begin; i < 2 * end; ++i) {
      const int32_t s = slot.i32()[i];
      if (s >= 0) by_slot[slot_begin[s]++] = static_cast<int32_t>(i);
    }
    for (int32_t i = 0; i < kept; ++i) {
      plan.row_source.i32()[next[expert.i32()[by_slot[i]]]++] = by_slot[i];
    }
  }
  return plan;
}

absl::Status CheckRowSources(const Tensor& row_source, int64_t num_tokens) {
  if (row_source.empty() || row_source.type() != ElementType::kInt32 ||
      row_source.rank() != 1) {
    return Expect("dispatch", "row_source i32[R]", row_source);
  }
  for (int64_t r = 0; r < row_source.size(); ++r) {
    const int64_t token = row_source.i32()[r] >> 1;
    if (token < 0 || token >= num_tokens) {
      return absl::InvalidArgumentError(
          absl::StrCat("dispatch: expected row sources in [0, ", 2 * num_tokens,
                       "), got ", row_source.i32()[r], " in row ", r));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Tensor> DispatchRows(const Tensor& x, const Tensor& row_source,
                                    ElementType type) {
  if (!IsMatrix(x, ElementType::kFloat32)) {
    return Expect("dispatch", "x f32[T, M]", x);
  }
  RETURN_IF_ERROR(CheckRowSources(row_source, x.dim(0)));
  const int64_t width = x.dim(1), num_rows = row_source.size();
  CHECK(type == ElementType::kFloat32 || type == ElementType::kBFloat16);
  Tensor rows(type, {num_rows, width});
  ParallelForChunks(
      num_rows, ChunkSize(width), [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          const float* const from =
              x.f32() + (row_source.i32()[r] >> 1) * width;
          if (type == ElementType::kFloat32) {
            std::memcpy(rows.f32() + r * width, from, width * sizeof(float));
          } else {
            CastRow(from, rows.data<BFloat16>() + r * width, width);
          }
        }
      });
  return rows;
}

absl::StatusOr<Tensor> DispatchGradient(const Tensor& d_rows,
                                        const Tensor& row_source,
                                        int64_t num_tokens) {
  if (num_tokens < 0 || num_tokens > std::numeric_limits<int32_t>::max() / 2) {
    return absl::InvalidArgumentError(absl::StrCat(
        "dispatch gradient: expected 0 to 2^30 tokens, got ", num_tokens));
  }
  ASSIGN_OR_RETURN(const std::vector<int32_t> row_of_choice,
                   RowsOfChoices("dispatch gradient", row_source, num_tokens));
  if (!IsRows(d_rows) || d_rows.dim(0) != row_source.size()) {
    return Expect("dispatch gradient", "d_rows [R, M]", d_rows);
  }
  return SumRows(d_rows, row_of_choice, nullptr);
}

absl::StatusOr<Tensor> Combine(const Tensor& rows, const Tensor& row_source,
                               const Tensor& weight) {
  if (!IsMatrix(weight, ElementType::kFloat32) || weight.dim(1) != 2) {
    return Expect("combine", "weight f32[T, 2]", weight);
  }
  ASSIGN_OR_RETURN(const std::vector<int32_t> row_of_choice,
                   RowsOfChoices("combine", row_source, weight.dim(0)));
  if (!IsRows(rows) || rows.dim(0) != row_source.size()) {
    return Expect("combine", "rows [R, M]", rows);
  }
  return SumRows(rows, row_of_choice, weight.f32());
}

absl::StatusOr<CombineGradients> CombineGradient(const Tensor& dy,
                                                 const Tensor& rows,
                                                 const Tensor& row_source,
                                                 const Tensor& weight) {
  if (!IsMatrix(weight, ElementType::kFloat32) || weight.dim(1) != 2) {
    return Expect("combine gradient", "weight f32[T, 2]", weight);
  }
  RETURN_IF_ERROR(
      RowsOfChoices("combine gradient", row_source, weight.dim(0)).status());
  if (!IsRows(rows) || rows.dim(0) != row_source.size()) {
    return Expect("combine gradient", "rows [R, M]", rows);
  }
  if (!IsMatrix(dy, ElementType::kFloat32) || dy.dim(0) != weight.dim(0) ||
      dy.dim(1) != rows.dim(1)) {
    return Expect("combine gradient", "dy f32[T, M] as weight and rows", dy);
  }
  const int64_t width = rows.dim(1);
  CombineGradients gradients{
      .d_rows = Tensor(rows.type(), rows.dims()),
      .d_weight = Tensor::Zeros(ElementType::kFloat32, weight.dims())};
  const bool narrow = rows.type() == ElementType::kBFloat16;
  ParallelForChunks(
      rows.dim(0), ChunkSize(2 * width), [&](int64_t begin, int64_t end) {
        std::vector<float> row, d_row(narrow ? width : 0);
        for (int64_t r = begin; r < end; ++r) {
          const int32_t source = row_source.i32()[r];
          gradients.d_weight.f32()[source] = ScaleAndDot(
              dy.f32() + (source >> 1) * width, RowOf(rows, r, row),
              weight.f32()[source], width,
              narrow ? d_row.data() : gradients.d_rows.f32() + r * width);
          if (narrow) {
            CastRow(d_row.data(), gradients.d_rows.data<BFloat16>() + r * width,
                    width);
          }
        }
      });
  return gradients;
}

}  // namespace gshard
