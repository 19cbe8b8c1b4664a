// Convolutions split along batch, channels and spatial dimensions, with their
// gradients. Where no sum is split, the bits equal those of the whole.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "services/partition/halo.h"
#include "tests/services/partition/lowering/window_case.h"
#include "tests/testing/builder_ops.h"

namespace gshard {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr float kTolerance = 1e-5f;

// Sizes and windows of k spatial dimensions.
struct ConvolutionCase {
  Shape x, kernel;
  ConvolutionAttributes attributes;

  Window window(size_t s) const {
    return {.size = kernel[s].size(),
            .stride = attributes.stride[s],
            .pad_low = attributes.pad_low[s],
            .pad_high = attributes.pad_high[s],
            .base_dilation = attributes.base_dilation[s],
            .window_dilation = attributes.window_dilation[s]};
  }
};

// `dilated_base` allows base dilation together with strides other than 1.
ConvolutionCase RandomConvolution(WindowCase& c, bool dilated_base) {
  for (;;) {
    ConvolutionCase made;
    const int64_t spatial = c.Draw(1, 2);
    made.x.push_back(c.Draw(1, 4));
    bool has_results = true;
    ConvolutionAttributes& a = made.attributes;
    for (int64_t s = 0; s < spatial; ++s) {
      made.x.push_back(c.Draw(1, spatial == 1 ? 20 : 11));
      made.kernel.push_back(c.Draw(1, 4));
      a.stride.push_back(c.Draw(1, 3));
      a.pad_low.push_back(c.Draw(-1, 4));
      a.pad_high.push_back(c.Draw(-1, 4));
      a.base_dilation.push_back(dilated_base ? c.Draw(1, 3) : 1);
      a.window_dilation.push_back(c.Draw(1, 2));
      has_results =
          has_results && WindowCount(made.x.back().size(), made.window(s)) > 0;
    }
    made.x.push_back(c.Draw(1, 3));
    made.kernel.push_back(made.x.back());
    made.kernel.push_back(c.Draw(1, 3));
    if (has_results) return made;
  }
}

// Adds the convolution and its gradients; the kernel's with `kernel_gradient`.
void Write(Builder& b, WindowCase& c, const ConvolutionCase& conv,
           const std::vector<int>& cuts, bool kernel_gradient) {
  const ValueId x = FloatInput(b, "x", conv.x);
  c.Cut(b, x, cuts);
  const ValueId kernel = b.Parameter("kernel", conv.kernel);
  const ValueId y = Convolution(b, x, kernel, conv.attributes);
  b.Output("y", y);
  std::vector<ValueId> values = {x};
  if (kernel_gradient) values.push_back(kernel);
  AddWeightedGradients(b, y, values);
}

// Splitting batch and spatial dimensions splits no sum over channels, and each
// position gives the same bits wherever it is computed.
TEST(ConvolutionLoweringTest, ImagesCutAnywhereGiveTheSameBits) {
  int shifts = 0;
  for (uint64_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    WindowCase c(seed);
    const DeviceMesh mesh = c.Mesh();
    const ConvolutionCase conv = RandomConvolution(c, false);
    std::vector<int> cuts;
    for (size_t d = 0; d + 1 < conv.x.size(); ++d) cuts.push_back(d);
    Builder b("convolution");
    Write(b, c, conv, cuts, /*kernel_gradient=*/false);
    shifts += Shifts(CheckCase(std::move(b), mesh, {}, 0));
    if (HasFailure()) return;
  }
  EXPECT_GT(shifts, 100);
}

TEST(ConvolutionLoweringTest, AllDimensionsAllWindowsAllGradients) {
  std::map<DilationCase, int> cases;
  int shifts = 0;
  for (uint64_t seed = 0; seed < 700; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    WindowCase c(seed);
    const DeviceMesh mesh = c.Mesh();
    const ConvolutionCase conv = RandomConvolution(c, true);
    std::vector<int> cuts = {1};
    if (conv.x.size() == 4) cuts.push_back(2);
    if (c.Draw(0, 2) == 0) cuts = {0, 1, static_cast<int>(conv.x.size()) - 1};
    for (size_t s = 0; s + 2 < conv.x.size(); ++s) {
      ASSERT_OK_AND_ASSIGN(const HaloPlan plan,
                           PlanHalo({.base = conv.x[s + 1].size(),
                                     .window = conv.window(s),
                                     .parts = mesh.Parts({0})}));
      ++cases[plan.dilation_case];
    }
    Builder b("convolution");
    Write(b, c, conv, cuts, /*kernel_gradient=*/true);
    shifts += Shifts(CheckCase(std::move(b), mesh, {}, kTolerance));
    if (HasFailure()) return;
  }
  EXPECT_GT(cases[DilationCase::kAligned], 100);
  EXPECT_GT(cases[DilationCase::kShiftResults], 50);
  EXPECT_GT(cases[DilationCase::kShiftWindow], 50);
  EXPECT_GT(shifts, 100);
}

TEST(ConvolutionLoweringTest, GradientsOfGradients) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    WindowCase c(seed);
    const DeviceMesh mesh = c.Mesh();
    const ConvolutionCase conv = RandomConvolution(c, true);
    Builder b("kernel gradient");
    const ValueId x = FloatInput(b, "x", conv.x);
    c.Cut(b, x, {0, 1});
    const ValueId kernel = b.Parameter("kernel", conv.kernel);
    const ValueId y = Convolution(b, x, kernel, conv.attributes);
    const ValueId loss = b.ReduceSum(
        b.Multiply(y, y),
        std::vector<int64_t>(conv.x.size() == 3
                                 ? std::vector<int64_t>{0, 1, 2}
                                 : std::vector<int64_t>{0, 1, 2, 3}));
    ASSERT_OK_AND_ASSIGN(const std::vector<ValueId> gradients,
                         AddGradients(b, loss, {kernel}));
    AddWeightedGradients(b, gradients[0], {x, kernel});
    // Looser, as results are sums of squares of sums.
    CheckCase(std::move(b), mesh, {}, 1e-4f);
    if (HasFailure()) return;
  }
}

// The paper's table 4: Convolution(BIXY, xyIO -> BOXY) split on X needs O(1)
// collective permutes, whatever the number of devices.
TEST(OperatorTableTest, ConvolutionSplitOnAPositionShiftsItsBorders) {
  std::vector<std::vector<std::string>> ops;
  for (const int64_t devices : {2, 4, 8, 64}) {
    Builder b("convolution");
    const ValueId x = Split(b, FloatInput(b, "x", {2, 256, 6, 3}), 1, "d");
    const ValueId kernel = b.Parameter("kernel", {3, 3, 3, 4});
    b.Output("y", Convolution(b, x, kernel,
                              {.pad_low = {1, 1}, .pad_high = {1, 1}}));
    ASSERT_OK_AND_ASSIGN(const Program program, std::move(b).Finish());
    ASSERT_OK_AND_ASSIGN(const Partitioned partitioned,
                         Partition(program, Line(devices)));
    EXPECT_THAT(Operators(partitioned.program, /*collectives_only=*/true),
                ElementsAre("shift", "shift"));
    ops.push_back(Operators(partitioned.program, /*collectives_only=*/false));
  }
  EXPECT_THAT(ops, Each(ops[0]));
}

// x's borders are exchanged for its convolution and, separately, for the
// kernel's gradient.
TEST(OperatorTableTest, GradientsShiftBordersAndAddUpTheKernels) {
  std::vector<std::vector<std::string>> ops;
  for (const int64_t devices : {2, 4, 8, 64}) {
    Builder b("convolution");
    const ValueId x = Split(b, FloatInput(b, "x", {2, 256, 3}), 1, "d");
    const ValueId kernel = b.Parameter("kernel", {3, 3, 4});
    const ValueId y =
        Convolution(b, x, kernel, {.pad_low = {1}, .pad_high = {1}});
    b.Output("y", y);
    AddWeightedGradients(b, y, {x, kernel});
    ASSERT_OK_AND_ASSIGN(const Program program, std::move(b).Finish());
    ASSERT_OK_AND_ASSIGN(const Partitioned partitioned,
                         Partition(program, Line(devices)));
    EXPECT_THAT(Operators(partitioned.program, /*collectives_only=*/true),
                UnorderedElementsAre("shift", "shift", "shift", "shift",
                                     "shift", "shift", "all_reduce"));
    ops.push_back(Operators(partitioned.program, /*collectives_only=*/false));
  }
  EXPECT_THAT(ops, Each(ops[0]));
}

// The other rows of the table, on matrix products, hold for convolutions too.
TEST(OperatorTableTest, ConvolutionSplitOnBatchOrChannels) {
  const auto collectives = [](int64_t devices, int x_dim, int kernel_dim) {
    Builder b("convolution");
    const ValueId x = FloatInput(b, "x", {5, 9, 60});
    const ValueId kernel = b.Parameter("kernel", {3, 60, 7});
    if (x_dim >= 0) Split(b, x, x_dim, "d");
    if (kernel_dim >= 0) Split(b, kernel, kernel_dim, "d");
    b.Output("y", Convolution(b, x, kernel));
    return CheckCase(std::move(b), Line(devices), {}, kTolerance);
  };
  for (const int64_t devices : {2, 3, 4, 8}) {
    EXPECT_THAT(collectives(devices, 0, -1), IsEmpty());
    EXPECT_THAT(collectives(devices, -1, 2), IsEmpty());
    EXPECT_THAT(collectives(devices, 2, 1), ElementsAre("all_reduce"));
  }
}

// Annotating the image on two axes is enough to split all layers along both of
// its dimensions.
TEST(ConvolutionLoweringTest, SplitsOfAnImageReachAllLayers) {
  Builder b("convolutions");
  ValueId x = FloatInput(b, "x", {2, 22, 21, 3});
  Split(b, Split(b, x, 1, "x"), 2, "y");
  for (int layer = 0; layer < 3; ++layer) {
    const int64_t stride = layer == 1 ? 2 : 1;
    const ValueId kernel =
        b.Parameter(absl::StrCat("kernel", layer), {3, 3, 3, 3});
    x = b.Relu(Convolution(
        b, x, kernel,
        {.stride = {stride, stride}, .pad_low = {1, 1}, .pad_high = {1, 1}}));
  }
  b.Output("y", x);
  EXPECT_THAT(CheckCase(std::move(b), Square(), {}, 0),
              AllOf(Each("shift"), Contains("shift").Times(3 * 4)));
}

}  // namespace
}  // namespace gshard
