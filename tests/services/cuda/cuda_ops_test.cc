// Checks the GPU's operators by the cases of the CPU's kernels.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "services/cuda/ops/cuda_kernels.h"
#include "services/moe/graph_ops.h"
#include "tests/services/cuda/gpu_test.h"
#include "tests/services/graph/op_cases.h"
#include "tests/services/moe/moe_cases.h"

namespace gshard {
namespace {

// Operators that no program of a router or worker contains.
const std::set<std::string>& WithoutKernels() {
  static const auto* const names =
      new std::set<std::string>{"convolution",
                                "convolution_kernel_gradient",
                                "dynamic_slice",
                                "layer_norm",
                                "layer_norm_gradient",
                                "mask_tail",
                                "pad",
                                "reduce_max_gradient",
                                "reverse",
                                "softmax",
                                "softmax_gradient"};
  return *names;
}

std::vector<OpCase> CudaCases() {
  RegisterCudaKernels();
  std::vector<OpCase> cases;
  for (const auto& some : {AllGraphCases(), MoeCases()}) {
    for (const OpCase& c : some) {
      if (WithoutKernels().count(c.op) > 0) continue;
      cases.push_back(c);
      if (WithoutKernels().count(c.op + "_gradient") > 0) {
        cases.back().differentiated.clear();
      }
    }
  }
  return cases;
}

using CudaGateTest = GpuTest;

class CudaOpTest : public GpuTest,
                   public ::testing::WithParamInterface<OpCase> {};

INSTANTIATE_TEST_SUITE_P(All, CudaOpTest, ::testing::ValuesIn(CudaCases()));

TEST_P(CudaOpTest, KernelAgreesWithReference) {
  CheckAgainstReference(GetParam(), Backend::kCuda, device_.get());
}

TEST_P(CudaOpTest, GradientsAgreeWithReference) {
  CheckGradientsAgainstReference(GetParam(), Backend::kCuda, device_.get());
}

// A program from the wire may give counts of other groups than it has.
TEST_F(CudaGateTest, GradientNeedsTheCountsOfAllGroups) {
  GatingOptions options;
  options.group_size = 2;
  OpCase c = MoeCases()[0];
  c.inputs.push_back(Tensor::Ints({1, 4}, {3, 0, 2, 1}));
  c.build = [options](Builder& b, const std::vector<ValueId>& x) {
    const GateValues gate = GateTokens(b, x[0], x[1], x[2], options, 3);
    const Attributes attributes = b.program().nodes.back().attributes;
    return std::vector<ValueId>{
        b.AddOne("top2_gating_gradient",
                 {x[0], gate.expert, gate.slot, x[3], gate.log_sum, gate.weight,
                  gate.balance_loss, gate.z_loss},
                 attributes)};
  };
  const auto refused =
      StatusIs(absl::StatusCode::kInvalidArgument,
               ::testing::HasSubstr("choice_count i32[5, 4], got i32[1, 4]"));
  EXPECT_THAT(OpProgram(c).Run(Backend::kCpu), refused);
  EXPECT_THAT(OpProgram(c).Run(Backend::kCuda, device_.get()), refused);
}

using CudaAttentionTest = GpuTest;

TEST_F(CudaAttentionTest, RefusesHeadsThatAreTooWide) {
  for (const int64_t width : {256, 257}) {
    const Tensor x = RandomTensor({1, 2, 1, width}, 1);
    const OpCase c =
        SimpleCase("attention", "wide heads", {x, x, x, Tensor::Ints({1}, {2})},
                   {{"causal", int64_t{0}},
                    {"scale", 0.5},
                    {"dropout_rate", 0.0},
                    {"salt", int64_t{0}},
                    {"keep_statistics", int64_t{0}}},
                   {});
    const auto result = OpProgram(c).Run(Backend::kCuda, device_.get());
    if (width == 256) {
      EXPECT_OK(result);
    } else {
      EXPECT_THAT(result,
                  StatusIs(absl::StatusCode::kUnimplemented,
                           ::testing::HasSubstr("width up to 256 on a GPU")));
    }
  }
}

// WithoutKernels() lists exactly the operators without a kernel.
TEST(CudaOpNamesTest, AreThoseThatAreListed) {
  RegisterCudaKernels();
  std::set<std::string> missing;
  for (const auto& some : {AllGraphCases(), MoeCases()}) {
    for (const OpCase& c : some) {
      const bool is_fed = FindOp(c.op)->kernel == nullptr;
      if (!is_fed && FindKernel(c.op, Backend::kCuda) == nullptr) {
        missing.insert(c.op);
      }
    }
  }
  EXPECT_EQ(missing, WithoutKernels());
}

}  // namespace
}  // namespace gshard
