#include "services/segments/expert_rows.h"

#include <cstring>

#include "absl/strings/str_cat.h"

namespace gshard {

absl::StatusOr<ExpertRows> ExpertRows::Create(const Tensor& group_sizes) {
  if (group_sizes.type() != ElementType::kInt32 || group_sizes.rank() != 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "group sizes must be i32[E], got ", group_sizes.TypeString()));
  }
  ExpertRows rows;
  rows.group_sizes_ = group_sizes;
  int64_t end = 0;
  for (int64_t e = 0; e < group_sizes.dim(0); ++e) {
    const int32_t size = group_sizes.i32()[e];
    if (size < 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "group sizes must not be negative, got ", size, " for expert ", e));
    }
    end += size;
    rows.end_of_.push_back(end);
  }
  return rows;
}

std::vector<RowRange> ExpertRows::RangesOf(
    absl::Span<const int32_t> experts) const {
  std::vector<RowRange> ranges;
  for (const int32_t expert : experts) {
    const RowRange rows = range(expert);
    if (rows.begin == rows.end) continue;
    if (!ranges.empty() && ranges.back().end == rows.begin) {
      ranges.back().end = rows.end;
    } else {
      ranges.push_back(rows);
    }
  }
  return ranges;
}

int64_t CountRows(absl::Span<const RowRange> ranges) {
  int64_t count = 0;
  for (const RowRange& range : ranges) count += range.end - range.begin;
  return count;
}

absl::StatusOr<Tensor> TakeRows(const Tensor& whole, int64_t total,
                                absl::Span<const RowRange> ranges) {
  if (whole.rank() < 1 || whole.dim(0) != total) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected ", total, " rows, got ", whole.TypeString()));
  }
  if (ranges.empty()) return whole.Rows(0, 0);
  if (ranges.size() == 1) return whole.Rows(ranges[0].begin, ranges[0].end);
  Dims dims = whole.dims();
  dims[0] = CountRows(ranges);
  Tensor part(whole.type(), dims);
  std::byte* to = part.raw();
  for (const RowRange& range : ranges) {
    const Tensor rows = whole.Rows(range.begin, range.end);
    std::memcpy(to, rows.raw(), rows.bytes());
    to += rows.bytes();
  }
  return part;
}

void PutRows(const Tensor& part, absl::Span<const RowRange> ranges,
             Tensor& whole) {
  const std::byte* from = part.raw();
  for (const RowRange& range : ranges) {
    Tensor rows = whole.Rows(range.begin, range.end);
    std::memcpy(rows.raw(), from, rows.bytes());
    from += rows.bytes();
  }
}

}  // namespace gshard
