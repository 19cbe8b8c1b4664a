#include "services/train/gradient_norm.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "services/ops/simd.h"
#include "services/train/lanes.h"

namespace gshard {
namespace {

GSHARD_SIMD double SumSquares(const float* values, int64_t size) {
  return SumLanes(
      size, [=](DoubleLanes & out, int64_t i,
                int64_t count) __attribute__((always_inline)) {
        FloatLanes x;
        LoadLanes(x, values + i, count);
        const DoubleLanes wide = __builtin_convertvector(x, DoubleLanes);
        out = wide * wide;
      });
}

}  // namespace

double SumOfSquares(absl::Span<const float> values) {
  return SumSquares(values.data(), static_cast<int64_t>(values.size()));
}

absl::StatusOr<double> GlobalNormScale(double sum_of_squares, double max_norm) {
  if (!(max_norm >= 0) || !std::isfinite(max_norm)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the largest norm must be >= 0 and finite, got ", max_norm));
  }
  if (!(sum_of_squares >= 0) || !std::isfinite(sum_of_squares)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the gradient is not finite: its squares sum to ", sum_of_squares));
  }
  const double norm = std::sqrt(sum_of_squares);
  if (max_norm == 0 || norm <= max_norm) return 1.0;
  return max_norm / norm;
}

}  // namespace gshard
