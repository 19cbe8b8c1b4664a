// Executes plans of halo.h as a partitioned program would, with all partitions
// in one process: the joined parts equal the whole, whatever the padding of the
// last shards holds.

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/base/random.h"
#include "services/ops/concat.h"
#include "services/ops/convolution.h"
#include "services/ops/elementwise.h"
#include "services/ops/padding.h"
#include "services/ops/reverse.h"
#include "services/partition/halo.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

// Rows [begin, end) of x [X, ...], zero outside of x.
Tensor RowsOrZeros(const Tensor& x, int64_t begin, int64_t end) {
  std::vector<Padding> padding(x.rank());
  padding[0] = {.low = -begin, .high = end - x.dim(0)};
  return Pad(x, padding, 0.0);
}

// x [X] in shards of `shard` elements, padded with NaN.
std::vector<Tensor> Shards(const Tensor& x, int64_t shard, int64_t parts) {
  const Tensor padded = Pad(x, {{.high = shard * parts - x.dim(0)}},
                            std::numeric_limits<double>::quiet_NaN());
  std::vector<Tensor> shards;
  for (int64_t i = 0; i < parts; ++i) {
    shards.push_back(padded.Rows(i * shard, (i + 1) * shard));
  }
  return shards;
}

// Steps 1 to 4 of halo.h: the slice of each partition.
std::vector<Tensor> Exchange(const HaloPlan& plan, std::vector<Tensor> shards) {
  const int64_t parts = shards.size();
  for (int64_t i = 0; i < parts && plan.masks; ++i) {
    shards[i] = MaskTail(shards[i], 0, plan.own_valid.At(i), 0.0);
  }
  const Tensor all = Concat(shards, 0);
  std::vector<Tensor> slices;
  for (int64_t i = 0; i < parts; ++i) {
    const int64_t own = i * plan.base_shard;
    // The exchange brings only fetch_left and fetch_right elements.
    const Tensor fetched = RowsOrZeros(
        all, own - plan.fetch_left, own + plan.base_shard + plan.fetch_right);
    const Tensor row = RowsOrZeros(fetched, -plan.zeros_left,
                                   fetched.dim(0) + plan.zeros_right);
    const int64_t start = plan.slice_start.At(i);
    slices.push_back(Slice(row, 0, start, start + plan.slice_size).Clone());
  }
  return slices;
}

// The results of all partitions, without padding.
Tensor Results(const HaloPlan& plan, const std::vector<Tensor>& parts) {
  return Concat(parts, 0).Rows(0, plan.result_count);
}

// Step 5 for a convolution of one image and channel: x [size], kernel [K].
Tensor Convolve(const Tensor& x, const Tensor& kernel, const Window& window) {
  const Tensor y =
      Convolution(x.Reshaped({1, x.size(), 1}),
                  kernel.Reshaped({kernel.size(), 1, 1}), {window});
  return y.Reshaped({y.size()});
}

Tensor ConvolvePart(const HaloPlan& plan, const Tensor& slice, Tensor kernel,
                    int64_t window_dilation, int64_t i) {
  const int64_t shift = plan.shift.At(i);
  if (plan.dilation_case == DilationCase::kShiftWindow) {
    const Tensor spread = Pad(kernel,
                              {{.low = plan.max_shift,
                                .high = plan.max_shift,
                                .interior = window_dilation - 1}},
                              0.0);
    const int64_t start = plan.max_shift - shift;
    kernel = Slice(spread, 0, start, start + plan.local.size).Clone();
  }
  const Tensor y = Convolve(slice, kernel, plan.local);
  EXPECT_EQ(y.size(), plan.local_count);
  if (plan.dilation_case != DilationCase::kShiftResults) return y;
  return Slice(y, 0, shift, shift + plan.result_shard);
}

// Partition i's share of the kernel's gradient, from its slice and its part of
// the results' gradient, with padding masked.
Tensor KernelGradientPart(const HaloPlan& plan, const Tensor& slice, Tensor dy,
                          const Window& window, int64_t i) {
  const int64_t shift = plan.shift.At(i);
  if (plan.dilation_case == DilationCase::kShiftResults) {
    const Tensor wide =
        Pad(dy, {{.low = plan.max_shift, .high = plan.max_shift}}, 0.0);
    const int64_t start = plan.max_shift - shift;
    dy = Slice(wide, 0, start, start + plan.local_count).Clone();
  }
  const Tensor gradient =
      ConvolutionKernelGradient(slice.Reshaped({1, slice.size(), 1}),
                                dy.Reshaped({1, dy.size(), 1}), {plan.local})
          .Reshaped({plan.local.size});
  if (plan.dilation_case != DilationCase::kShiftWindow) return gradient;
  Tensor picked(ElementType::kFloat32, {window.size});
  for (int64_t k = 0; k < window.size; ++k) {
    picked.f32()[k] = gradient.f32()[shift + k * window.window_dilation];
  }
  return picked;
}

TEST(HaloExecutionTest, PartsOfConvolutionsAreTheWhole) {
  std::map<DilationCase, int> cases;
  for (uint64_t seed = 0; seed < 4000; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    uint64_t draws = 0;
    const auto draw = [&](int64_t low, int64_t high) {
      return low +
             static_cast<int64_t>(RandomBelow(seed, draws++, high - low + 1));
    };
    const HaloRequest request = {.base = draw(1, 20),
                                 .window = {.size = draw(1, 5),
                                            .stride = draw(1, 4),
                                            .pad_low = draw(-4, 9),
                                            .pad_high = draw(-4, 9),
                                            .base_dilation = draw(1, 4),
                                            .window_dilation = draw(1, 3)},
                                 .parts = draw(1, 7)};
    const Window& window = request.window;
    if (WindowCount(request.base, window) == 0) continue;
    ASSERT_OK_AND_ASSIGN(const HaloPlan plan, PlanHalo(request));
    ++cases[plan.dilation_case];
    const Tensor x = RandomTensor({request.base}, seed);
    const Tensor kernel = RandomTensor({window.size}, seed + 1);
    const std::vector<Tensor> slices =
        Exchange(plan, Shards(x, plan.base_shard, request.parts));
    std::vector<Tensor> parts;
    for (int64_t i = 0; i < request.parts; ++i) {
      // Slice elements outside the dimension must be the operator's zeros.
      for (int64_t t = 0; t < plan.slice_size; ++t) {
        if (t < plan.valid_begin.At(i) || t >= plan.valid_end.At(i)) {
          ASSERT_EQ(slices[i].f32()[t], 0.0f);
        }
      }
      parts.push_back(
          ConvolvePart(plan, slices[i], kernel, window.window_dilation, i));
    }
    const Tensor y = Convolve(x, kernel, window);
    EXPECT_TRUE(TensorNear(Results(plan, parts), y, 1e-6f));

    const Tensor dy = RandomTensor(y.dims(), seed + 2);
    const std::vector<Tensor> dy_parts =
        Shards(dy, plan.result_shard, request.parts);
    Tensor sum = Tensor::Zeros(ElementType::kFloat32, {window.size});
    for (int64_t i = 0; i < request.parts; ++i) {
      const int64_t valid = dy.size() - i * plan.result_shard;
      sum = Add(sum, KernelGradientPart(plan, slices[i],
                                        MaskTail(dy_parts[i], 0, valid, 0.0),
                                        window, i));
    }
    const Tensor whole =
        ConvolutionKernelGradient(x.Reshaped({1, x.size(), 1}),
                                  dy.Reshaped({1, dy.size(), 1}), {window})
            .Reshaped({window.size});
    EXPECT_TRUE(TensorNear(sum, whole, 1e-5f));
  }
  EXPECT_GT(cases[DilationCase::kAligned], 500);
  EXPECT_GT(cases[DilationCase::kShiftResults], 100);
  EXPECT_GT(cases[DilationCase::kShiftWindow], 300);
}

TEST(HaloExecutionTest, SlicesAndPads) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    uint64_t draws = 0;
    const auto draw = [&](int64_t low, int64_t high) {
      return low +
             static_cast<int64_t>(RandomBelow(seed, draws++, high - low + 1));
    };
    const int64_t base = draw(1, 20), parts = draw(1, 6);
    const Tensor x = RandomTensor({base}, seed);
    const Tensor one = Tensor::Floats({1}, {1.0f});

    const int64_t begin = draw(0, base - 1), end = draw(begin + 1, base);
    const int64_t stride = draw(1, 3);
    ASSERT_OK_AND_ASSIGN(const HaloPlan slice,
                         PlanHalo(SliceHalo(base, begin, end, stride, parts)));
    std::vector<Tensor> results;
    for (const Tensor& part :
         Exchange(slice, Shards(x, slice.base_shard, parts))) {
      results.push_back(Convolve(part, one, slice.local));
    }
    const Tensor sliced = Results(slice, results);
    ASSERT_EQ(sliced.size(), (end - begin + stride - 1) / stride);
    for (int64_t i = 0; i < sliced.size(); ++i) {
      EXPECT_EQ(sliced.f32()[i], x.f32()[begin + i * stride]);
    }

    const Padding padding = {
        .low = draw(-3, 9), .high = draw(-3, 9), .interior = draw(0, 3)};
    if (PaddedSize(base, padding) <= 0) continue;
    ASSERT_OK_AND_ASSIGN(const HaloPlan pad,
                         PlanHalo(PadHalo(base, padding.low, padding.high,
                                          padding.interior, parts)));
    const std::vector<Tensor> slices =
        Exchange(pad, Shards(x, pad.base_shard, parts));
    results.clear();
    for (int64_t i = 0; i < parts; ++i) {
      const Tensor padded = Pad(slices[i],
                                {{.low = pad.local.pad_low,
                                  .high = pad.local.pad_high,
                                  .interior = padding.interior}},
                                0.0);
      ASSERT_EQ(padded.size(), pad.local_count);
      const int64_t shift = pad.shift.At(i);
      results.push_back(
          Slice(padded, 0, shift, shift + pad.result_shard).Clone());
    }
    EXPECT_TRUE(TensorEqual(Results(pad, results), Pad(x, {padding}, 0.0)));
  }
}

TEST(HaloExecutionTest, ReversesAndReshapes) {
  for (int64_t base = 1; base <= 20; ++base) {
    for (int64_t parts = 1; parts <= 6; ++parts) {
      SCOPED_TRACE(absl::StrCat(base, " in ", parts));
      const Tensor x = RandomTensor({base}, base);
      ASSERT_OK_AND_ASSIGN(const HaloPlan reverse,
                           PlanHalo(ReverseHalo(base, parts)));
      std::vector<Tensor> shards = Shards(x, reverse.base_shard, parts);
      std::reverse(shards.begin(), shards.end());
      for (Tensor& shard : shards) shard = Reverse(shard, {0});
      EXPECT_TRUE(TensorEqual(
          Concat(Exchange(reverse, shards), 0).Rows(0, base), Reverse(x, {0})));

      for (int64_t more = 0; more < 5; ++more) {
        const int64_t least = (base + parts - 1) / parts;
        for (const auto& [from, to] :
             {std::pair(least + more, least), std::pair(least, least + more)}) {
          ASSERT_OK_AND_ASSIGN(const HaloPlan reshape,
                               PlanHalo(ReshapeHalo(base, from, to, parts)));
          const std::vector<Tensor> moved =
              Exchange(reshape, Shards(x, from, parts));
          ASSERT_EQ(moved[0].size(), to);
          EXPECT_TRUE(TensorEqual(Concat(moved, 0).Rows(0, base), x));
        }
      }
    }
  }
}

}  // namespace
}  // namespace gshard
