#include "services/collectives/source_blocks.h"

#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/check.h"

namespace gshard {
namespace {

void CopyRows(const Tensor& from, int64_t from_row, int64_t count, Tensor* to,
              int64_t to_row) {
  const size_t row = RowBytes(from);
  if (count * row == 0) return;
  std::memcpy(to->raw() + to_row * row, from.raw() + from_row * row,
              count * row);
}

}  // namespace

size_t RowBytes(const Tensor& rows) {
  const absl::Span<const int64_t> dims = rows.dims();
  return NumElements(dims.subspan(1)) * ElementSize(rows.type());
}

Tensor LikeRows(const Tensor& rows, int64_t count) {
  Dims dims = rows.dims();
  dims[0] = count;
  return Tensor(rows.type(), dims);
}

absl::StatusOr<SourceBlocks> SourceBlocks::Create(Tensor counts) {
  if (counts.empty() || counts.type() != ElementType::kInt32 ||
      counts.rank() != 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected counts i32[n, E], got ",
                     counts.empty() ? "nothing" : counts.TypeString()));
  }
  int64_t rows = 0;
  for (const int32_t count : counts.span<int32_t>()) {
    if (count < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("expected counts of rows, got ", count));
    }
    rows += count;
  }
  if (rows > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected fewer than 2^31 rows, got ", rows));
  }
  return SourceBlocks(std::move(counts));
}

SourceBlocks::SourceBlocks(Tensor counts)
    : counts_(std::move(counts)), first_row_(counts_.dim(0) + 1, 0) {
  const int64_t experts = counts_.dim(1);
  for (int64_t r = 0; r < counts_.dim(0); ++r) {
    first_row_[r + 1] = first_row_[r];
    for (int64_t e = 0; e < experts; ++e) {
      first_row_[r + 1] += counts_.i32()[r * experts + e];
    }
  }
}

Tensor SourceBlocks::GroupSizes() const {
  const int64_t experts = counts_.dim(1);
  Tensor sizes = Tensor::Zeros(ElementType::kInt32, {experts});
  for (int64_t i = 0; i < counts_.size(); ++i) {
    sizes.i32()[i % experts] += counts_.i32()[i];
  }
  return sizes;
}

template <typename Block>
void SourceBlocks::ForEach(Block block) const {
  const int64_t experts = counts_.dim(1);
  std::vector<int64_t> by_rank(first_row_.begin(), first_row_.end() - 1);
  int64_t by_expert = 0;
  for (int64_t e = 0; e < experts; ++e) {
    for (size_t r = 0; r < by_rank.size(); ++r) {
      const int64_t count = counts_.i32()[r * experts + e];
      block(static_cast<int>(r), by_rank[r], by_expert, count);
      by_rank[r] += count;
      by_expert += count;
    }
  }
}

Tensor SourceBlocks::ByExpert(const Tensor& by_rank) const {
  CHECK(by_rank.dim(0) == rows());
  if (counts_.dim(0) == 1 || counts_.dim(1) == 1) return by_rank;
  Tensor result(by_rank.type(), by_rank.dims());
  ForEach([&](int, int64_t from, int64_t to, int64_t count) {
    CopyRows(by_rank, from, count, &result, to);
  });
  return result;
}

Tensor SourceBlocks::ByRank(const Tensor& by_expert) const {
  CHECK(by_expert.dim(0) == rows());
  if (counts_.dim(0) == 1 || counts_.dim(1) == 1) return by_expert;
  Tensor result(by_expert.type(), by_expert.dims());
  ForEach([&](int, int64_t to, int64_t from, int64_t count) {
    CopyRows(by_expert, from, count, &result, to);
  });
  return result;
}

Tensor SourceBlocks::OfRank(const Tensor& by_expert, int rank) const {
  CHECK(by_expert.dim(0) == rows());
  Tensor result = LikeRows(by_expert, RowsFrom(rank));
  ForEach([&](int r, int64_t to, int64_t from, int64_t count) {
    if (r != rank) return;
    CopyRows(by_expert, from, count, &result, to - FirstRow(rank));
  });
  return result;
}

}  // namespace gshard
