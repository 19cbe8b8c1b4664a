#include "services/partition/halo.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"

namespace gshard {
namespace {

constexpr int64_t kMaxParts = int64_t{1} << 20;

int64_t FloorDivide(int64_t a, int64_t b) {
  return a / b - (a % b < 0 ? 1 : 0);
}

int64_t CeilDivide(int64_t a, int64_t b) { return -FloorDivide(-a, b); }

// -form, and form plus multiplier * i + offset.
LinearForm Negated(const LinearForm& form) {
  // -floor(a / d) = floor((-a + d - 1) / d).
  return {-form.multiplier, -form.offset + form.divisor - 1, form.divisor};
}
LinearForm Plus(const LinearForm& form, int64_t multiplier, int64_t offset) {
  return {form.multiplier + multiplier * form.divisor,
          form.offset + offset * form.divisor, form.divisor};
}

int64_t Largest(const LinearForm& form, int64_t parts) {
  return std::max(form.At(0), form.At(parts - 1));
}

// The smallest and largest remainder over partitions. Remainders repeat after
// `period` partitions.
struct Remainders {
  int64_t least;
  int64_t largest;
};
Remainders AllRemainders(const RemainderForm& form, int64_t parts) {
  const int64_t period = form.divisor / std::gcd(form.multiplier, form.divisor);
  Remainders all = {form.At(0), form.At(0)};
  for (int64_t i = 1; i < std::min(parts, period); ++i) {
    all.least = std::min(all.least, form.At(i));
    all.largest = std::max(all.largest, form.At(i));
  }
  return all;
}

// The requested shard size, or the minimum.
absl::StatusOr<int64_t> Shard(const char* name, int64_t asked, int64_t size,
                              int64_t parts) {
  if (asked == 0) return CeilDivide(size, parts);
  if (asked < 0 || asked > kMaxWindowSize / parts || asked * parts < size) {
    return absl::InvalidArgumentError(absl::StrCat("'", name, "' of ", parts,
                                                   " parts must hold ", size,
                                                   " elements, got ", asked));
  }
  return asked;
}

absl::Status CheckRequest(const HaloRequest& request) {
  const Window& window = request.window;
  RETURN_IF_ERROR(CheckWindow(request.base, window));
  if (request.parts < 1 || request.parts > kMaxParts) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'parts' must lie in [1, ", kMaxParts, "], got ", request.parts));
  }
  const int64_t padded = Dilated(request.base, window.base_dilation) +
                         std::max<int64_t>(window.pad_low, 0) +
                         std::max<int64_t>(window.pad_high, 0);
  const int64_t extent = Dilated(window.size, window.window_dilation);
  if (std::max(padded, extent) > kMaxWindowSize) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the padded base and the window must extend over at most ",
        kMaxWindowSize, " elements, got ", padded, " and ", extent));
  }
  const int64_t results = WindowCount(request.base, window);
  if (request.base == 0 || results == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a halo needs elements and results, got ", request.base,
                     " elements and ", results, " results"));
  }
  return absl::OkStatus();
}

// Sizes of steps 2 and 3, and the start of the slice in their result.
void PlanExchange(const HaloRequest& request, HaloPlan& plan) {
  const int64_t own = plan.base_shard;
  plan.left_halo = Plus(Negated(plan.start), own, 0);
  plan.right_halo = Plus(plan.limit, -own, -own);
  plan.left = std::max<int64_t>(Largest(plan.left_halo, request.parts), 0);
  plan.right = std::max<int64_t>(Largest(plan.right_halo, request.parts), 0);

  plan.own_valid = {-own, request.base, 1};
  plan.masks = own * request.parts > request.base;

  const int64_t others = own * (request.parts - 1);
  plan.fetch_left = std::min(plan.left, others);
  plan.fetch_right = std::min(plan.right, others);
  plan.left_hops = CeilDivide(plan.fetch_left, own);
  plan.right_hops = CeilDivide(plan.fetch_right, own);

  plan.slice_start = Plus(plan.start, -own, plan.left);
  plan.zeros_left = plan.left - plan.fetch_left;
  // A slice may be longer than its partition needs.
  const int64_t end =
      Largest(plan.slice_start, request.parts) + plan.slice_size;
  plan.zeros_right =
      std::max(end - plan.left - own, plan.right) - plan.fetch_right;

  plan.valid_begin = Negated(plan.start);
  plan.valid_end = Plus(plan.valid_begin, 0, request.base);
}

}  // namespace

int64_t LinearForm::At(int64_t partition) const {
  return FloorDivide(multiplier * partition + offset, divisor);
}

int64_t RemainderForm::At(int64_t partition) const {
  const int64_t value = multiplier * partition + offset;
  return value - FloorDivide(value, divisor) * divisor - least;
}

// Let d be the base dilation. Partition i's windows cover the positions [first,
// first + seen) of the dilated base, where first = stride * result_shard * i -
// pad_low; element j is at position j * d. Hence start(i) = ceil(first / d) and
// limit(i) = ceil((first + seen) / d).
//
// Then start(i) * d - first zeros precede the first element: with remainder(i)
// = (first + d - 1) mod d, these are d - 1 - remainder(i). And limit(i) -
// start(i) = floor((remainder(i) + seen) / d).
absl::StatusOr<HaloPlan> PlanHalo(const HaloRequest& request) {
  RETURN_IF_ERROR(CheckRequest(request));
  const Window& window = request.window;
  const int64_t d = window.base_dilation;
  HaloPlan plan;
  plan.result_count = WindowCount(request.base, window);
  ASSIGN_OR_RETURN(plan.base_shard, Shard("base_shard", request.base_shard,
                                          request.base, request.parts));
  ASSIGN_OR_RETURN(plan.result_shard,
                   Shard("result_shard", request.result_shard,
                         plan.result_count, request.parts));

  const int64_t step = window.stride * plan.result_shard;
  const int64_t extent = Dilated(window.size, window.window_dilation);
  const int64_t seen = window.stride * (plan.result_shard - 1) + extent;
  plan.start = {step, d - 1 - window.pad_low, d};
  plan.limit = {step, d - 1 - window.pad_low + seen, d};

  plan.shift = {step, d - 1 - window.pad_low, d, 0};
  const Remainders remainders = AllRemainders(plan.shift, request.parts);
  plan.shift.least = remainders.least;
  plan.max_shift = remainders.largest - remainders.least;
  plan.slice_size = (remainders.largest + seen) / d;
  PlanExchange(request, plan);

  plan.local = window;
  plan.local_count = plan.result_shard;
  if (plan.max_shift > 0 && window.stride == 1) {
    plan.dilation_case = DilationCase::kShiftResults;
    plan.local_count += plan.max_shift;
  } else if (plan.max_shift > 0) {
    plan.dilation_case = DilationCase::kShiftWindow;
    plan.local.size = extent + plan.max_shift;
    plan.local.window_dilation = 1;
  }
  // Up to the end of the last local window; negative where the slice is longer.
  plan.local.pad_low = d - 1 - remainders.least;
  plan.local.pad_high = window.stride * (plan.local_count - 1) +
                        Dilated(plan.local.size, plan.local.window_dilation) -
                        Dilated(plan.slice_size, d) - plan.local.pad_low;
  return plan;
}

HaloRequest SliceHalo(int64_t base, int64_t begin, int64_t end, int64_t stride,
                      int64_t parts) {
  return {
      .base = base,
      .window = {.stride = stride, .pad_low = -begin, .pad_high = end - base},
      .parts = parts};
}

HaloRequest PadHalo(int64_t base, int64_t low, int64_t high, int64_t interior,
                    int64_t parts) {
  return {.base = base,
          .window = {.pad_low = low,
                     .pad_high = high,
                     .base_dilation = interior + 1},
          .parts = parts};
}

HaloRequest ReverseHalo(int64_t base, int64_t parts) {
  const int64_t padded = CeilDivide(base, parts) * parts;
  return SliceHalo(padded, padded - base, padded, 1, parts);
}

HaloRequest ReshapeHalo(int64_t elements, int64_t base_shard,
                        int64_t result_shard, int64_t parts) {
  return {.base = elements,
          .parts = parts,
          .base_shard = base_shard,
          .result_shard = result_shard};
}

}  // namespace gshard
